#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

/// Shapes and strides only, symbolic ones included: what tracing and export see in place of abn_dense.cpp.
namespace palimpsest::ops::meta {
namespace {

at::Tensor like_output_if(bool needed, const at::Tensor& t) {
  if (!needed) return at::empty_symint({c10::SymInt(0)}, t.options());
  return at::empty_strided_symint(t.sym_sizes(), output_strides(t.sym_sizes(), t.sym_strides()), t.options());
}

at::Tensor vector_if(bool needed, const at::Tensor& x, at::ScalarType dtype) {
  return at::empty_symint({needed ? x.sym_size(1) : c10::SymInt(0)}, x.options().dtype(dtype));
}

/// What a forward pass returns beside z over x: another tensor like x, bits, or nothing.
at::Tensor second_output(const at::Tensor& x, std::string_view keep, bool for_backward) {
  const Saved kept = keep_from_name(keep);
  if (kept == Saved::kOutputBit && for_backward)
    return at::empty_symint({kernels::branch_bytes(x.sym_numel())}, x.options().dtype(at::kByte));
  return like_output_if(saves_aside(kept), x);
}

/// AbnStatistics::side.
at::Tensor side_of(const at::Tensor& x) {
  return at::empty_symint({c10::SymInt(0)}, x.options().dtype(at::kByte));
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward(const at::Tensor& x,
                                                                                   PALIMPSEST_ABN_FORWARD) {
  return {like_output_if(true, x), second_output(x, keep, for_backward), side_of(x),
          vector_if(true, x, at::kDouble), vector_if(true, x, at::kDouble)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_forward_(const at::Tensor& x,
                                                                        PALIMPSEST_ABN_FORWARD) {
  return {second_output(x, keep, for_backward), side_of(x), vector_if(true, x, at::kDouble),
          vector_if(true, x, at::kDouble)};
}

at::Tensor abn_rebuild(const at::Tensor& kept, PALIMPSEST_ABN_SETTINGS, const at::Tensor& mean,
                       const at::Tensor& inv_std) {
  return like_output_if(true, kept);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_backward(const at::Tensor& dz,
                                                                                    PALIMPSEST_ABN_BACKWARD,
                                                                                    bool need_z, bool need_dx,
                                                                                    bool need_dresidual) {
  const auto sums = accumulate_type(kept.scalar_type());
  return {like_output_if(need_dx, kept), vector_if(need_sums, kept, sums), vector_if(need_sums, kept, sums),
          like_output_if(need_dresidual, kept), like_output_if(need_z, kept)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> abn_backward_(const at::Tensor& dz,
                                                                         PALIMPSEST_ABN_BACKWARD, bool need_z,
                                                                         bool need_dresidual) {
  const auto sums = accumulate_type(kept.scalar_type());
  return {vector_if(need_sums, kept, sums), vector_if(need_sums, kept, sums),
          like_output_if(need_dresidual, kept), like_output_if(need_z, kept)};
}

}  // namespace palimpsest::ops::meta
