#pragma once

#include "palimpsest/ops/abn_conv.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// Reads the features of a densely connected block and saves no tensor of its own for backward. Backward
/// recomputes the concatenation and the normalized concatenation, each in one allocation that is freed at
/// once. So all layers of a block share two allocations of the size of the largest layer.
/// Python: torch.ops.palimpsest.concat_abn_conv.
/// Source: Pleiss, Chen, Huang, Li, van der Maaten, Weinberger, "Memory-Efficient Implementation of
/// DenseNets", 2017.
namespace palimpsest::ops {

/// Returns conv(pool(act(bn(cat(features))))).
/// features: (N, C_i, H, W) each, concatenated along dimension 1. A single feature is not copied.
/// norm, options: as for abn_conv; options.saved is ignored. Without `norm` there is neither normalization
/// nor activation.
/// pool: true adds average pooling over 2 x 2 pixels (an odd last row or column is left out) before a 1x1
/// convolution. Pooling after the convolution would give the same result with four times the products.
/// Gradients: features, weight, bias, conv_weight; bit-identical to those of abn_conv with Saved::kInput.
/// Double backward is an error. Errors: c10::Error "[concat_abn_conv] requirement, got value".
at::Tensor concat_abn_conv(at::TensorList features, const std::optional<NormalizationTensors>& norm,
                           const at::Tensor& conv_weight, const ConvolutionOptions& convolution,
                           const AbnOptions& options = {}, bool pool = false);

}  // namespace palimpsest::ops
