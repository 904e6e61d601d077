#pragma once

#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/convolution.h"

#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <vector>

/// The convolution for operators that differentiate by themselves: checks, and passes without autograd. Other
/// operators include this header of the folder only.
/// `precision` stands for autocast: operands are rounded to its storage type, and results have this type.
/// Without a `precision` the convolution runs in the dtype of the weight.
namespace palimpsest::ops::convolution_detail {

/// Checks stride, padding and dilation: our kernels compute with them before libtorch sees them. Raises
/// c10::Error "[op] requirement, got value".
void check_geometry(const char* op, const ConvolutionOptions& options);
/// The same, and that the numbers of dimensions, options and channels match, the window fits into the padded image, and
/// weight and bias are on the device of x: an operator that writes over x calls this first.
void check(const char* op, const at::Tensor& x, const at::Tensor& weight,
           const std::optional<at::Tensor>& bias, const ConvolutionOptions& options);

/// What the products read: x, or max(x, 0) without a tensor of it.
enum class Reads { kX, kReluOfX };

at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   const ConvolutionOptions& options, const std::optional<ProductPrecision>& precision,
                   Reads reads = Reads::kX);

struct Gradients {
  at::Tensor input, weight, bias;  ///< undefined where not needed
};

/// `needed` selects the gradients of input, weight and bias. Only the weight gradient reads the values of x;
/// the input gradient needs only the shape and layout of x.
Gradients backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                   const ConvolutionOptions& options, std::array<bool, 3> needed,
                   const std::optional<ProductPrecision>& precision, Reads reads = Reads::kX);

struct ParallelGradients {
  at::Tensor input;                 ///< the sum over the convolutions; undefined where not needed
  std::vector<at::Tensor> weights;  ///< undefined where not needed
};

/// The gradients of several convolutions of x. On a CPU the input gradients are summed part of the batch by
/// part, so that there is one tensor of the size of x.
ParallelGradients parallel_backward(at::TensorList douts, const at::Tensor& x, at::TensorList weights,
                                    const std::vector<ConvolutionOptions>& options, bool need_input,
                                    const std::vector<bool>& need_weights,
                                    const std::optional<ProductPrecision>& precision);

/// Return whether forward, the weight gradient of backward, and both its gradients take Reads::kReluOfX:
/// kernels of ours run. The gradient of the input is then that of x, 0 where x <= 0.
bool forward_reads_relu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        const ConvolutionOptions& options, const std::optional<ProductPrecision>& precision);
bool weight_gradient_reads_relu(const at::Tensor& x, const at::Tensor& weight,
                                const ConvolutionOptions& options,
                                const std::optional<ProductPrecision>& precision);
bool backward_reads_relu(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options,
                         const std::optional<ProductPrecision>& precision);

/// Returns whether libtorch does not run every pass of this convolution in the dtype of its tensors: a kernel
/// of ours runs a pass, or 16-bit tensors are computed in f32 (ops/autocast.h).
bool has_own_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options);

void save_options(torch::autograd::AutogradContext* ctx, const ConvolutionOptions& options);
ConvolutionOptions saved_options(torch::autograd::AutogradContext* ctx);

}  // namespace palimpsest::ops::convolution_detail
