#pragma once

#include "palimpsest/nn/conv2d.h"
#include "palimpsest/ops/convolution.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// The parts of a convolution module, for modules that run it within another operator.
namespace palimpsest::nn::conv2d_detail {

/// Returns stride, padding, dilation and groups as the operators take them. Throws Error(kUsage) for a mode
/// other than zeros, and for padding by name, which the operators do not have.
ops::ConvolutionOptions geometry(const torch::nn::Conv2dImpl& conv);

std::optional<at::Tensor> bias(const torch::nn::Conv2dImpl& conv);

/// Returns conv(x), computed by `backend`.
at::Tensor forward(torch::nn::Conv2dImpl& conv, const at::Tensor& x, ConvolutionBackend backend);

}  // namespace palimpsest::nn::conv2d_detail
