#include "palimpsest/ops/abn/functional.h"

#include "palimpsest/ops/common/find_operator.h"
#include "palimpsest/ops/common/names.h"

#include <utility>

namespace palimpsest::ops {
namespace {

at::Tensor defined_if(bool needed, at::Tensor t) {
  return needed ? std::move(t) : at::Tensor();
}

/// The bits of a forward pass, where it stored any.
at::Tensor branch_of(const AbnForwardArguments& a, const at::Tensor& bits) {
  return a.for_backward && a.settings.keep == Saved::kOutputBit ? bits : at::Tensor();
}

OptionalTensor or_none(const at::Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

#define PALIMPSEST_SETTINGS_OF(s)                                                            \
  (s).residual, (s).weight, (s).bias, activation_name((s).activation), (s).activation_param, \
      keep_name((s).keep), (s).relu_residual
#define PALIMPSEST_FORWARD_OF(a)                                                                       \
  PALIMPSEST_SETTINGS_OF((a).settings), (a).running_mean, (a).running_var, (a).training, (a).momentum, \
      (a).eps, (a).for_backward

}  // namespace

AbnForwardResult call_forward(const at::Tensor& x, const AbnForwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_forward", dense::abn_forward);
  auto [z, kept, side, mean, inv_std] = op.call(x, PALIMPSEST_FORWARD_OF(a));
  at::Tensor branch = branch_of(a, kept);
  return {std::move(z),
          defined_if(saves_aside(a.settings.keep), std::move(kept)),
          {std::move(mean), std::move(inv_std), std::move(side), std::move(branch)}};
}

AbnForwardResult call_forward_(const at::Tensor& x, const AbnForwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_forward_", dense::abn_forward_);
  auto [z, side, mean, inv_std] = op.call(x, PALIMPSEST_FORWARD_OF(a));
  at::Tensor branch = branch_of(a, z);
  return {defined_if(saves_aside(a.settings.keep), std::move(z)),
          {},
          {std::move(mean), std::move(inv_std), std::move(side), std::move(branch)}};
}

at::Tensor call_rebuild(const at::Tensor& kept, const AbnSettings& settings, const at::Tensor& mean,
                        const at::Tensor& inv_std) {
  static const auto op = find_operator("palimpsest::abn_rebuild", dense::abn_rebuild);
  return op.call(kept, PALIMPSEST_SETTINGS_OF(settings), mean, inv_std);
}

AbnGradients call_backward(const at::Tensor& dz, const AbnBackwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_backward", dense::abn_backward);
  auto [dx, dweight, dbias, dresidual, z] =
      op.call(dz, a.kept, or_none(a.branch), a.side, PALIMPSEST_SETTINGS_OF(a.settings), a.mean, a.inv_std,
              a.training, a.need_sums, a.need_z, a.need_dx, a.need_dresidual);
  return {defined_if(a.need_dx, std::move(dx)), defined_if(a.need_sums, std::move(dweight)),
          defined_if(a.need_sums, std::move(dbias)), defined_if(a.need_dresidual, std::move(dresidual)),
          defined_if(a.need_z, std::move(z))};
}

AbnGradients call_backward_(at::Tensor dz, const AbnBackwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_backward_", dense::abn_backward_);
  auto [dweight, dbias, dresidual, z] =
      op.call(dz, a.kept, or_none(a.branch), a.side, PALIMPSEST_SETTINGS_OF(a.settings), a.mean, a.inv_std,
              a.training, a.need_sums, a.need_z, a.need_dresidual);
  return {std::move(dz), defined_if(a.need_sums, std::move(dweight)),
          defined_if(a.need_sums, std::move(dbias)), defined_if(a.need_dresidual, std::move(dresidual)),
          defined_if(a.need_z, std::move(z))};
}

}  // namespace palimpsest::ops
