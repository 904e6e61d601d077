#include "palimpsest/ops/abn_inner.h"

#include "palimpsest/ops/activation_name.h"
#include "palimpsest/ops/layout.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <utility>

namespace palimpsest::ops {
namespace {

template <class Function>
auto find_operator(const char* name, Function*) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

at::Tensor defined_if(bool needed, at::Tensor t) {
  return needed ? std::move(t) : at::Tensor();
}

}  // namespace

std::pair<at::Tensor, AbnStatistics> call_forward(const at::Tensor& x, const AbnForwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_forward", cpu::abn_forward);
  auto [z, mean, unbiased_var, inv_std, xhat] =
      op.call(x, a.weight, a.bias, a.frozen_mean, a.frozen_var, a.eps, activation_name(a.activation),
              a.activation_param, a.for_backward);
  return {std::move(z), {std::move(mean), std::move(unbiased_var), std::move(inv_std), std::move(xhat)}};
}

AbnStatistics call_forward_(at::Tensor x, const AbnForwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_forward_", cpu::abn_forward_);
  auto [mean, unbiased_var, inv_std, xhat] =
      op.call(std::move(x), a.weight, a.bias, a.frozen_mean, a.frozen_var, a.eps,
              activation_name(a.activation), a.activation_param, a.for_backward);
  return {std::move(mean), std::move(unbiased_var), std::move(inv_std), std::move(xhat)};
}

AbnGradients call_backward(const at::Tensor& dz, const AbnBackwardArguments& a, bool need_dx) {
  static const auto op = find_operator("palimpsest::abn_backward", cpu::abn_backward);
  auto [dx, dweight, dbias] =
      op.call(dz, a.z, a.xhat, a.weight, a.bias, a.inv_std, a.training, activation_name(a.activation),
              a.activation_param, a.need_sums, need_dx);
  return {defined_if(need_dx, std::move(dx)), defined_if(a.need_sums, std::move(dweight)),
          defined_if(a.need_sums, std::move(dbias))};
}

AbnGradients call_backward_(at::Tensor dz, const AbnBackwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_backward_", cpu::abn_backward_);
  auto [dweight, dbias] = op.call(dz, a.z, a.xhat, a.weight, a.bias, a.inv_std, a.training,
                                  activation_name(a.activation), a.activation_param, a.need_sums);
  return {std::move(dz), defined_if(a.need_sums, std::move(dweight)),
          defined_if(a.need_sums, std::move(dbias))};
}

at::Tensor reveal_xhat(const at::Tensor& xhat, const at::Tensor& z) {
  if (xhat.sym_numel() != 0 || xhat.storage().sym_nbytes() == 0) return xhat;
  at::Tensor revealed = xhat.detach();
  revealed.unsafeGetTensorImpl()->set_sizes_and_strides(z.sizes(), output_strides(z.sizes(), z.strides()));
  return revealed;
}

}  // namespace palimpsest::ops
