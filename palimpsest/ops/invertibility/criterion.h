#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::ops {

/// The layer whose z is to give back its normalized x.
struct RecoveryLayer {
  Activation activation = Activation::kLeakyReLU;
  at::ScalarType storage = at::kFloat;  ///< of z
  int64_t channels = 0;
};

/// What of its tensors decides whether z can: (C) each, on the host, of any floating dtype and stride.
/// Undefined: absent.
struct RecoveryValues {
  at::Tensor weight, bias, residual_rms;
  /// By how much weight and bias may have moved since, if they are of an earlier step: a channel that is
  /// degenerate anywhere within is.
  at::Tensor weight_moved, bias_moved;
};

/// The degenerate channels: those whose normalized x cannot be recovered from z well enough for gradients of
/// relative error 1e-5 (f32) or 1e-10 (f64). x-hat = (y - bias - residual) / weight, and y is stored with an
/// error of about ulp(max|y|):
///   eps * (|bias| + 4 |weight| + 4 rms(residual)) / |weight| > tolerance,
/// four standard deviations being the reach of x-hat; weight = 0 always is. `tolerance` is 1e-10 in f64 and
/// 64 eps else (|bias| > 60 |weight| is degenerate). An activation that saturates stores y with an error that
/// grows as exp(|y|), whose root mean square over a normal x-hat must stay below tolerance * |weight| as
/// well:
///   ELU      eps * exp(weight^2 - bias)
///   sigmoid  eps * exp(weight^2 + bias)
///   tanh     eps * exp(4 weight^2 + 2 |bias|) / 4
///   softplus eps * 1.4, as z is never small where y is: log(2) / (1/2) at y = 0
/// One with two branches (GELU, SiLU) loses y near its minimum, where z is flat, over a width of
/// u = sqrt(2 eps |z_min| / act''(y_min)) and by as much, and on the falling branch below the y_lost whose z
/// underflows. Over y = bias + weight * (a normal x-hat), whose density at the minimum is p:
///   eps / 2 + sqrt(p u^3 / 2) / 4 + the root mean square of (y_lost - y) over y < y_lost
/// (the second a quarter, as it is of either sign and goes out of the sums).
/// (with the residual's rms counted like weight's).
std::vector<int64_t> degenerate_channels(const RecoveryLayer& layer, const RecoveryValues& values);

/// What abn_fallback_count, abn_side_channel_count and abn_missed_channel_count (ops/abn.h) read.
void count_fallback();
void count_side_channels(int64_t channels);
void count_missed_channels(int64_t channels);

}  // namespace palimpsest::ops
