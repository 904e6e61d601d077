#pragma once

#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/convolution.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// Batch normalization, activation and convolution in one node of the graph, which saves one full-size tensor
/// for any activation. A separate convolution saves its input z for the gradient of its weight; this node
/// recomputes z from the tensor that the normalization saves.
///
/// | options.saved  | saved for backward | backward, before the convolution's weight gradient      |
/// | -------------- | ------------------ | ------------------------------------------------------- |
/// | kOutput        | z                  | nothing: the convolution's saved input is the layer's z |
/// | kOutputForm1   | z                  | nothing, likewise                                       |
/// | kOutputBit     | z and one bit      | nothing, likewise                                       |
/// | kPreActivation | y                  | z = act(y)                                              |
/// | kNormalized    | x-hat              | z = act(weight * x-hat + bias)                          |
/// | kInput         | x                  | z = act(weight * (x - mean) * inv_std + bias)           |
/// The recomputed z is bit-identical, so the gradients are those of the separate layers. Double backward is
/// an error. Errors: c10::Error "[abn] ..." and "[abn_conv] requirement, got value".
/// Python: torch.ops.palimpsest.abn_conv, abn_conv_ and activate_conv.
/// Sources: Rota Bulo et al., CVPR 2018, figure 2 (b: kInput; c: kNormalized; d: kOutputForm1; e: kOutput);
/// kPreActivation and kOutputBit are ours.
namespace palimpsest::ops {

/// Returns conv(act(bn(x))). x: (N, C, spatial...); conv_weight: (C_out, C / groups, spatial...); conv_bias:
/// (C_out) or none. Under autocast the convolution runs in autocast's dtype, and the f32 conv_weight is
/// saved, not a 16-bit copy (ops/autocast.h).
at::Tensor abn_conv(const at::Tensor& x, const NormalizationTensors& norm, const at::Tensor& conv_weight,
                    const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                    const AbnOptions& options = {});

/// Does the same, but writes the saved tensor over x, as abn_ does. kInput leaves x as it is.
at::Tensor abn_conv_(at::Tensor x, const NormalizationTensors& norm, const at::Tensor& conv_weight,
                     const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                     const AbnOptions& options = {});

/// Returns conv(act(y)) and saves y, not act(y): for a tensor with several readers that each apply the
/// activation, such as the sum of a residual block.
at::Tensor activate_conv(const at::Tensor& y, const at::Tensor& conv_weight,
                         const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                         Activation activation, double activation_param);

}  // namespace palimpsest::ops
