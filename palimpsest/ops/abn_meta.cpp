#include "palimpsest/ops/abn_inner.h"
#include "palimpsest/ops/layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

/// Shapes and strides only, symbolic ones included: what tracing and export see in place of abn_cpu.cpp.
namespace palimpsest::ops::meta {
namespace {

at::Tensor like_output(const at::Tensor& t) {
  return at::empty_strided_symint(t.sym_sizes(), output_strides(t.sym_sizes(), t.sym_strides()), t.options());
}

at::Tensor vector_if(bool needed, const at::Tensor& x) {
  return at::empty_symint({needed ? x.sym_size(1) : c10::SymInt(0)}, x.options());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward(const at::Tensor& x,
                                                                                   PALIMPSEST_ABN_FORWARD) {
  const bool batch = !frozen_mean.has_value();
  return {like_output(x), vector_if(batch, x), vector_if(batch, x), vector_if(true, x), vector_if(false, x)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward_(at::Tensor x,
                                                                        PALIMPSEST_ABN_FORWARD) {
  const bool batch = !frozen_mean.has_value();
  return {vector_if(batch, x), vector_if(batch, x), vector_if(true, x), vector_if(false, x)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> abn_backward(const at::Tensor& dz, PALIMPSEST_ABN_BACKWARD,
                                                            bool need_dx) {
  return {need_dx ? like_output(z) : vector_if(false, z), vector_if(need_sums, z), vector_if(need_sums, z)};
}

std::tuple<at::Tensor, at::Tensor> abn_backward_(at::Tensor dz, PALIMPSEST_ABN_BACKWARD) {
  return {vector_if(need_sums, z), vector_if(need_sums, z)};
}

}  // namespace palimpsest::ops::meta
