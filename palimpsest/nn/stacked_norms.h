#pragma once

#include "palimpsest/nn/batch_norm_act.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest::nn {

/// Returns the normalized and activated parts, stacked along the channels:
///   cat(act(bn_1(parts[0])), act(bn_2(parts[1])), ...)
/// Statistics are per channel, so one normalization of the stack equals one per part. Under every strategy but
/// `standard` it is one operator that takes the vectors of all layers: one stack is saved, and not the parts
/// beside the stack that the next layer saves. `standard`, an empty batch, and layers that are not in the same
/// mode (some frozen or folded) run the layers one by one.
/// parts: (N, C_i, ...), outputs of convolutions; nothing else may read them. One per layer.
/// norms: their parameters and running statistics stay their own. They must have the same options but channels.
at::Tensor forward_stacked(std::vector<at::Tensor> parts, std::vector<BatchNormAct>& norms);

}  // namespace palimpsest::nn
