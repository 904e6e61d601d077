#pragma once

#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/convolution.h"

#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>

/// The convolution for operators that differentiate by themselves: checks, and passes without autograd. This
/// is the only header of the folder that other operators include.
/// `precision` stands for autocast: operands are rounded to its storage type and results have that type.
/// Without it the convolution runs in the dtype of the weight.
namespace palimpsest::ops::convolution_detail {

/// The requirements beyond libtorch's: matching numbers of dimensions, options and channels. Raises
/// c10::Error "[op] requirement, got value".
void check(const char* op, const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options);

at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   const ConvolutionOptions& options, const std::optional<ProductPrecision>& precision);

struct Gradients {
  at::Tensor input, weight, bias;  ///< undefined where not needed
};

/// `needed`: which of input, weight and bias. Only the weight gradient reads the values of x; the input
/// gradient needs its shape and layout.
Gradients backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                   const ConvolutionOptions& options, std::array<bool, 3> needed,
                   const std::optional<ProductPrecision>& precision);

/// Whether any pass of this convolution is not libtorch's in the tensors' dtype: a kernel of ours runs, or of
/// 16-bit tensors f32 arithmetic (ops/autocast.h).
bool has_own_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options);

void save_options(torch::autograd::AutogradContext* ctx, const ConvolutionOptions& options);
ConvolutionOptions saved_options(torch::autograd::AutogradContext* ctx);

}  // namespace palimpsest::ops::convolution_detail
