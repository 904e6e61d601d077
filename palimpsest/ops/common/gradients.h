#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

/// What autograd Functions need to know about gradients and versions.
namespace palimpsest::ops {

/// Raises c10::Error "[op] ..." if this backward pass records a graph of its own (create_graph). `instead`:
/// what to use where a second derivative is needed.
void refuse_double_backward(const char* op, std::string_view instead);

/// Whether backward may write dx over the incoming gradient `dz`: no other owner sees dz, and it has the
/// dtype, device and strides of `like`. The gradient of a convolution passes; the gradients of sum (expanded)
/// and of a residual addition (shared with the other branch) do not.
bool can_steal_gradient(const at::Tensor& dz, const at::Tensor& like);

/// Tells autograd that the values of `t` were written past libtorch's operators, which raise the version by
/// themselves.
void bump_version(const at::Tensor& t);

}  // namespace palimpsest::ops
