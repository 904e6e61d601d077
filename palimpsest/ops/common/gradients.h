#pragma once

#include "palimpsest/ops/common/optional.h"

#include <ATen/core/Tensor.h>

#include <string_view>

/// Helpers of autograd Functions for gradients and versions.
namespace palimpsest::ops {

/// Raises c10::Error "[op] ..." if this backward pass itself is recorded (create_graph). `instead` names the
/// operators to use where double backward is needed.
void refuse_double_backward(const char* op, std::string_view instead);

/// Raises c10::NotImplementedError "[op] ..." if t has a tangent of forward-mode differentiation. Our kernels do
/// not see tangents: the result would have none, or, in place, that of the input. Takes 4 to 30 ns per tensor.
void refuse_tangent(const char* op, const at::Tensor& t);
void refuse_tangent(const char* op, const OptionalTensor& t);
void refuse_tangent(const char* op, at::TensorList tensors);

/// The same of several tensors, optional tensors and lists. An operator calls it before it leaves libtorch's
/// operators, forward and backward. Autograd itself refuses a tangent only if it records the call.
template <class... Tensors>
void refuse_tangents(const char* op, const Tensors&... tensors) {
  (refuse_tangent(op, tensors), ...);
}

/// Returns whether backward may write dx over the incoming gradient `dz`: no other owner sees dz, and dz has
/// the dtype, device and strides of `like`. This holds for the gradient from a convolution, and not for the
/// gradients from a sum (expanded) and from a residual addition (shared with the other branch).
bool can_steal_gradient(const at::Tensor& dz, const at::Tensor& like);

/// Tells autograd that our kernels wrote the values of `t`. (libtorch's operators raise the version
/// themselves.)
void bump_version(const at::Tensor& t);

}  // namespace palimpsest::ops
