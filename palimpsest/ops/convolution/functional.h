#pragma once

#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/convolution.h"

#include <torch/csrc/autograd/custom_function.h>

#include <array>

/// The passes of a convolution for those who differentiate by themselves: no autograd. Autocast is what
/// `precision` says: given, operands are rounded to its storage and results are of it; without it the
/// weight's type is that of the convolution.
namespace palimpsest::ops {

at::Tensor convolution_forward(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const ConvolutionOptions& options,
                               const std::optional<ProductPrecision>& precision = std::nullopt);

struct ConvolutionGradients {
  at::Tensor input, weight, bias;  ///< undefined where not needed
};

/// `needed`: which of input, weight and bias. Of x the values are read for the weight alone; for the input,
/// its shape and layout.
ConvolutionGradients convolution_backward(const at::Tensor& dout, const at::Tensor& x,
                                          const at::Tensor& weight, const ConvolutionOptions& options,
                                          std::array<bool, 3> needed,
                                          const std::optional<ProductPrecision>& precision = std::nullopt);

/// Whether a kernel of ours runs in any pass of this convolution.
bool has_own_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options);

void save_options(torch::autograd::AutogradContext* ctx, const ConvolutionOptions& options);
ConvolutionOptions saved_options(torch::autograd::AutogradContext* ctx);

}  // namespace palimpsest::ops
