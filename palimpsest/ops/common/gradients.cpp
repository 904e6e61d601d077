#include "palimpsest/ops/common/gradients.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace palimpsest::ops {

void refuse_double_backward(const char* op, std::string_view instead) {
  TORCH_CHECK(!c10::GradMode::is_enabled(), "[", op,
              "] the operator has no double backward, got a backward pass with create_graph; use ", instead,
              " where one is needed");
}

void refuse_tangent(const char* op, const at::Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(!t.defined() || !t._fw_grad(/*level=*/0).defined(), "[", op,
                              "] the operator has no forward-mode differentiation, got a tensor of shape ",
                              t.sym_sizes(), " with a tangent; use torch's own layers where one is needed");
}

void refuse_tangent(const char* op, const OptionalTensor& t) {
  if (t) refuse_tangent(op, *t);
}

void refuse_tangent(const char* op, at::TensorList tensors) {
  for (const at::Tensor& t : tensors) refuse_tangent(op, t);
}

bool can_steal_gradient(const at::Tensor& dz, const at::Tensor& like) {
  return !c10::GradMode::is_enabled() && dz.use_count() == 1 && !at::isTensorSubclassLike(dz) &&
         dz.storage().use_count() == 1 && dz.is_non_overlapping_and_dense() && !dz.is_neg() &&
         dz.scalar_type() == like.scalar_type() && dz.device() == like.device() &&
         dz.strides() == like.strides();
}

void bump_version(const at::Tensor& t) {
  t.unsafeGetTensorImpl()->bump_version();
}

}  // namespace palimpsest::ops
