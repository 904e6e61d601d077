#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::ops::invertibility {

/// The layer whose z is to give its normalized x back.
struct Layer {
  Activation activation = Activation::kLeakyReLU;
  at::ScalarType storage = at::kFloat;  ///< dtype of z
  int64_t channels = 0;
};

/// The values that decide: (C) each, on the host, any floating dtype and stride; undefined if absent.
struct Values {
  at::Tensor weight, bias, residual_rms;
  /// How far weight and bias may have moved since these values were read. A channel that is non-invertible
  /// anywhere within this distance counts as non-invertible.
  at::Tensor weight_moved, bias_moved;
};

/// The non-invertible channels: those whose normalized x cannot be recovered from z well enough for gradients
/// of relative error 1e-5 (f32) or 1e-10 (f64). x-hat = (y - bias - residual) / weight, and y is stored with
/// an error of about ulp(max|y|):
///   eps * (|bias| + 4 |weight| + 4 rms(residual)) / |weight| > tolerance,
/// four standard deviations being the reach of x-hat; weight = 0 always is. `tolerance` is 1e-10 in f64 and
/// 64 eps else (|bias| > 60 |weight| is non-invertible). An activation that saturates stores y with an error
/// that grows as exp(|y|), whose root mean square over a normal x-hat must stay below tolerance * |weight| as
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
std::vector<int64_t> non_invertible_channels(const Layer& layer, const Values& values);

}  // namespace palimpsest::ops::invertibility
