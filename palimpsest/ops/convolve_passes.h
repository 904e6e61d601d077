#pragma once

#include "palimpsest/ops/convolve.h"

#include <torch/csrc/autograd/custom_function.h>

#include <array>

/// The passes of a convolution for those who differentiate by themselves: no autograd, no autocast.
namespace palimpsest::ops {

at::Tensor convolution_forward(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const ConvolutionOptions& options);

struct ConvolutionGradients {
  at::Tensor input, weight, bias;  ///< undefined where not needed
};

/// `needed`: which of input, weight and bias. Of x the values are read for the weight alone; for the input,
/// its shape, dtype and layout.
ConvolutionGradients convolution_backward(const at::Tensor& dout, const at::Tensor& x,
                                          const at::Tensor& weight, const ConvolutionOptions& options,
                                          std::array<bool, 3> needed);

/// Whether a kernel of ours runs in any pass of this convolution.
bool has_own_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options);

void save_options(torch::autograd::AutogradContext* ctx, const ConvolutionOptions& options);
ConvolutionOptions saved_options(torch::autograd::AutogradContext* ctx);

}  // namespace palimpsest::ops
