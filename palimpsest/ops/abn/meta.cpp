#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/ops/abn/native.h"
#include "palimpsest/ops/common/layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <utility>

namespace palimpsest::ops::abn_detail::meta {
namespace {

at::Tensor output_if(bool needed, const at::Tensor& like) {
  if (!needed) return {};
  return at::empty_strided_symint(like.sym_sizes(), output_strides(like.sym_sizes(), like.sym_strides()),
                                  like.options());
}

at::Tensor vector_if(bool needed, const at::Tensor& x, at::ScalarType dtype) {
  if (!needed) return {};
  return at::empty_symint({x.sym_size(1)}, x.options().dtype(dtype));
}

/// The saved channels have shape (0) whatever their number is.
Statistics statistics_of(const at::Tensor& x, const ForwardArguments& arguments) {
  const auto hidden = [&](at::ScalarType dtype) {
    return at::empty_symint({c10::SymInt(0)}, x.options().dtype(dtype));
  };
  at::Tensor branch;
  if (arguments.settings.saved == Saved::kOutputBit && arguments.for_backward)
    branch = at::empty_symint({kernels::branch_bytes(x.sym_numel())}, x.options().dtype(at::kByte));
  at::Tensor count;
  if (!arguments.group.empty()) count = at::empty({1}, x.options().dtype(at::kDouble));
  return {vector_if(true, x, at::kDouble),
          vector_if(true, x, at::kDouble),
          hidden(x.scalar_type()),
          hidden(at::kLong),
          std::move(branch),
          std::move(count)};
}

}  // namespace

ForwardResult forward(const at::Tensor& x, const ForwardArguments& arguments) {
  return {output_if(true, x), output_if(saves_aside(arguments.settings.saved), x),
          statistics_of(x, arguments)};
}

ForwardResult forward_(const at::Tensor& x, const ForwardArguments& arguments) {
  return {output_if(saves_aside(arguments.settings.saved), x), {}, statistics_of(x, arguments)};
}

at::Tensor recompute_output(const at::Tensor& saved_values, const Settings& /*settings*/,
                            const at::Tensor& /*mean*/, const at::Tensor& /*inv_std*/) {
  return output_if(true, saved_values);
}

Gradients backward(const at::Tensor& /*dz*/, const BackwardArguments& a) {
  const auto type = accumulate_type(a.saved_values.scalar_type());
  return {output_if(a.need_dx, a.saved_values), vector_if(a.need_sums, a.saved_values, type),
          vector_if(a.need_sums, a.saved_values, type), output_if(a.need_dresidual, a.saved_values),
          output_if(a.need_z, a.saved_values)};
}

Gradients backward_(const at::Tensor& dz, const BackwardArguments& a) {
  const auto type = accumulate_type(a.saved_values.scalar_type());
  return {dz, vector_if(a.need_sums, a.saved_values, type), vector_if(a.need_sums, a.saved_values, type),
          output_if(a.need_dresidual, a.saved_values), output_if(a.need_z, a.saved_values)};
}

}  // namespace palimpsest::ops::abn_detail::meta
