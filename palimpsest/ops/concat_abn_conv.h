#pragma once

#include "palimpsest/ops/abn_conv.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// A reader of the features of a densely connected block that keeps nothing of its own for backward: neither
/// the concatenation nor the normalized one, which are made again there, each in one allocation that goes at
/// once. So all layers of a block share two allocations of the size of the largest (Pleiss, Chen, Huang, Li,
/// van der Maaten, Weinberger, "Memory-Efficient Implementation of DenseNets", 2017).
namespace palimpsest::ops {

/// conv(pool(act(bn(cat(features))))): the features side by side along dimension 1; a single one is not
/// copied. `norm`, `options`: as abn_conv has them (options.keep is not looked at); no `norm`: neither
/// normalization nor activation. `pool`: the mean of each 2 x 2 pixels, an odd last row or column left out,
/// before a 1x1 convolution: four times fewer products, and the same result as behind it.
/// Gradients: features, weight, bias, kernel; bit for bit those of abn_conv that keeps 'input'. A second
/// derivative is an error. Errors: c10::Error "[concat_abn_conv] requirement, got value".
at::Tensor concat_abn_conv(at::TensorList features, const std::optional<NormalizationTensors>& norm,
                           const at::Tensor& kernel, const ConvolutionOptions& convolution,
                           const AbnOptions& options, bool pool = false);

}  // namespace palimpsest::ops
