#pragma once

#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/convolution.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// Batch normalization + activation + convolution in one node of the graph, which keeps one full-size tensor
/// whatever the activation is. A convolution by itself saves its input z for its weight's gradient; this one
/// makes z again, from what the normalization keeps.
///
/// | options.keep  | kept        | backward before the convolution's own |
/// | kOutput       | z           | nothing: the convolution's saved input is the layer's z |
/// | kOutputBit    | z, one bit  | nothing, likewise |
/// | kPreActivation       | y           | z = act(y) |
/// | kNormalized   | x-hat       | z = act(weight * x-hat + bias) |
/// | kInput        | x           | z = act(weight * (x - mean) * inv_std + bias) |
/// z is made again bit for bit, so the gradients are those of the plain layers.
/// Sources: Rota Bulo et al., CVPR 2018, figure 2 (b: kInput; c: kNormalized; e: kOutput); kPreActivation and
/// kOutputBit are ours.
namespace palimpsest::ops {

/// The tensors of the normalization, as ops::abn has them.
struct NormalizationTensors {
  std::optional<at::Tensor> weight, bias, running_mean, running_var;
};

/// conv(act(bn(x))). x: (N, C, spatial...); kernel: (C_out, C / groups, spatial...), kernel_bias: (C_out) or
/// none. Under autocast the convolution runs in autocast's type, as libtorch's does, and what is kept of the
/// kernel is itself, not a 16-bit copy (ops/common/autocast.h). Degenerate channels
/// (ops/invertibility/criterion.h) make a layer that would keep y keep x-hat instead.
at::Tensor abn_conv(const at::Tensor& x, const NormalizationTensors& norm, const at::Tensor& kernel,
                    const std::optional<at::Tensor>& kernel_bias, const ConvolutionOptions& convolution,
                    const AbnOptions& options);

/// The same, writing what is kept over x, which is used up: see abn_. kInput has nothing to write and leaves
/// x.
at::Tensor abn_conv_(at::Tensor x, const NormalizationTensors& norm, const at::Tensor& kernel,
                     const std::optional<at::Tensor>& kernel_bias, const ConvolutionOptions& convolution,
                     const AbnOptions& options);

/// conv(act(t)) that keeps t and not act(t): for a tensor t with several readers, as the sum of a residual
/// block, each of which applies the activation while it reads.
at::Tensor activate_conv(const at::Tensor& t, const at::Tensor& kernel,
                         const std::optional<at::Tensor>& kernel_bias, const ConvolutionOptions& convolution,
                         Activation activation, double activation_param);

}  // namespace palimpsest::ops
