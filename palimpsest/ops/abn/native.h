#pragma once

#include "palimpsest/ops/abn/functional.h"

/// The passes of functional.h as schema.cpp registers them: `native` runs on CPU and CUDA tensors, `meta`
/// gives the shapes and strides that tracing and export see.
namespace palimpsest::ops::abn_detail {

/// Check everything that a pass reads, because anybody can call the inner operators, and memory accesses
/// depend on sizes and types. Raise c10::Error "[abn] requirement, got value".
void check_forward_pass(const at::Tensor& x, const ForwardArguments& arguments);
void check_output_pass(const at::Tensor& saved_values, const Settings& settings, const at::Tensor& mean,
                       const at::Tensor& inv_std);
void check_backward_pass(const at::Tensor& dz, const BackwardArguments& arguments, bool in_place);

namespace native {
ForwardResult forward(const at::Tensor& x, const ForwardArguments& arguments);
ForwardResult forward_(const at::Tensor& x, const ForwardArguments& arguments);
at::Tensor recompute_output(const at::Tensor& saved_values, const Settings& settings, const at::Tensor& mean,
                            const at::Tensor& inv_std);
Gradients backward(const at::Tensor& dz, const BackwardArguments& arguments);
Gradients backward_(const at::Tensor& dz, const BackwardArguments& arguments);
}  // namespace native

namespace meta {
ForwardResult forward(const at::Tensor& x, const ForwardArguments& arguments);
ForwardResult forward_(const at::Tensor& x, const ForwardArguments& arguments);
at::Tensor recompute_output(const at::Tensor& saved_values, const Settings& settings, const at::Tensor& mean,
                            const at::Tensor& inv_std);
Gradients backward(const at::Tensor& dz, const BackwardArguments& arguments);
Gradients backward_(const at::Tensor& dz, const BackwardArguments& arguments);
}  // namespace meta

}  // namespace palimpsest::ops::abn_detail
