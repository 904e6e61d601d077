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

/// The channels whose normalized x cannot be recovered from z: those for which
/// kernels::InvertibilityCriterion (kernels/formulas/invertibility.h, with the formulas) says so anywhere
/// within the moves.
std::vector<int64_t> degenerate_channels(const RecoveryLayer& layer, const RecoveryValues& values);

/// What abn_fallback_count, abn_side_channel_count and abn_missed_channel_count (ops/abn.h) read.
void count_fallback();
void count_side_channels(int64_t channels);
void count_missed_channels(int64_t channels);

}  // namespace palimpsest::ops
