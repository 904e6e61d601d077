#pragma once

#include "palimpsest/nn/strategy.h"
#include "palimpsest/ops/convolution.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace palimpsest::nn {

/// The convolution's geometry as the operators take it. Throws Error(kUsage) for a padding mode other than
/// zeros or padding by name, which they do not have.
ops::ConvolutionOptions convolution_options(const torch::nn::Conv2dImpl& conv);

/// The convolution's bias, if it has one.
std::optional<at::Tensor> bias_of(const torch::nn::Conv2dImpl& conv);

/// conv(x): libtorch's layer; under autocast ops::convolution, which keeps no 16-bit copy of the weight.
at::Tensor convolve(torch::nn::Conv2d& conv, const at::Tensor& x);

/// linear(x), likewise.
at::Tensor linear(torch::nn::Linear& linear, const at::Tensor& x);

/// conv(x) by strategy: `standard` is libtorch's layer; the others let a faster kernel do what it can
/// (ops::convolution), and are libtorch's layer for padding that the operators do not have. The same results but
/// for rounding. Where 16-bit maths needs it (in f32: "pseudo f16"; on a CPU f16, whose weight's
/// gradient libtorch leaves to oneDNN's reference loops, and what it does not leave to oneDNN at all),
/// `standard` runs ops::convolution, too.
at::Tensor convolve(torch::nn::Conv2d& conv, const at::Tensor& x, Strategy strategy);

}  // namespace palimpsest::nn
