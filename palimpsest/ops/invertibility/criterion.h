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

/// The channels whose normalized x cannot be recovered from z: those for which
/// kernels::InvertibilityCriterion (kernels/formulas/invertibility.h, with the formulas) says so anywhere
/// within the moves.
std::vector<int64_t> non_invertible_channels(const Layer& layer, const Values& values);

}  // namespace palimpsest::ops::invertibility
