#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn_inner.h"
#include "palimpsest/ops/activation_name.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

/// Everything that torch.ops.palimpsest holds.
namespace palimpsest::ops {
namespace {

AbnOptions options_of(bool training, double momentum, double eps, std::string_view activation,
                      double activation_param, const OptionalTensor& residual, std::string_view group) {
  TORCH_CHECK(!residual, "[abn] residual is not supported yet, got a tensor of shape ", residual->sym_sizes(),
              "; add it to x or to the result");
  TORCH_CHECK(group.empty(), "[abn] statistics over a process group are not supported yet, got group '",
              group, "'; leave it empty");
  return {training, momentum, eps, activation_from_name(activation), activation_param};
}

at::Tensor abn_by_name(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                       double momentum, double eps, std::string_view activation, double activation_param,
                       const OptionalTensor& residual, std::string_view group) {
  return abn(x, weight, bias, running_mean, running_var,
             options_of(training, momentum, eps, activation, activation_param, residual, group));
}

at::Tensor abn_by_name_(at::Tensor x, const OptionalTensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                        double momentum, double eps, std::string_view activation, double activation_param,
                        const OptionalTensor& residual, std::string_view group) {
  return abn_(x, weight, bias, running_mean, running_var,
              options_of(training, momentum, eps, activation, activation_param, residual, group));
}

// abn and abn_ are composite: every mode of libtorch (no_grad, inference, tracing, functionalization) takes
// them apart into the autograd Function and the inner operators below, which need no knowledge of those
// modes.
TORCH_LIBRARY(palimpsest, m) {
  m.def(
      "abn(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
      "bool training=True, float momentum=0.1, float eps=1e-5, str activation=\"leaky_relu\", "
      "float activation_param=0.01, Tensor? residual=None, str group=\"\") -> Tensor",
      &abn_by_name);
  m.def(
      "abn_(Tensor(a!) x, Tensor? weight, Tensor? bias, Tensor(b!)? running_mean, Tensor(c!)? running_var, "
      "bool training=True, float momentum=0.1, float eps=1e-5, str activation=\"leaky_relu\", "
      "float activation_param=0.01, Tensor? residual=None, str group=\"\") -> Tensor(a!)",
      &abn_by_name_);
  m.def("abn_fallback_count() -> int", &abn_fallback_count);
  m.def("reset_abn_fallback_count() -> ()", &reset_abn_fallback_count);

  m.def(
      "abn_forward(Tensor x, Tensor? weight, Tensor? bias, Tensor? frozen_mean, Tensor? frozen_var, float "
      "eps, "
      "str activation, float activation_param, bool for_backward) -> (Tensor, Tensor, Tensor, Tensor, "
      "Tensor)");
  m.def(
      "abn_forward_(Tensor(a!) x, Tensor? weight, Tensor? bias, Tensor? frozen_mean, Tensor? frozen_var, "
      "float eps, "
      "str activation, float activation_param, bool for_backward) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "abn_backward(Tensor dz, Tensor z, Tensor xhat, Tensor? weight, Tensor? bias, Tensor inv_std, bool "
      "training, "
      "str activation, float activation_param, bool need_sums, bool need_dx) -> (Tensor, Tensor, Tensor)");
  m.def(
      "abn_backward_(Tensor(a!) dz, Tensor z, Tensor xhat, Tensor? weight, Tensor? bias, Tensor inv_std, "
      "bool training, str activation, float activation_param, bool need_sums) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(palimpsest, CPU, m) {
  m.impl("abn_forward", &cpu::abn_forward);
  m.impl("abn_forward_", &cpu::abn_forward_);
  m.impl("abn_backward", &cpu::abn_backward);
  m.impl("abn_backward_", &cpu::abn_backward_);
}

TORCH_LIBRARY_IMPL(palimpsest, Meta, m) {
  m.impl("abn_forward", &meta::abn_forward);
  m.impl("abn_forward_", &meta::abn_forward_);
  m.impl("abn_backward", &meta::abn_backward);
  m.impl("abn_backward_", &meta::abn_backward_);
}

// Without these a gradient through an inner operator would be silently wrong; with them it is an error.
TORCH_LIBRARY_IMPL(palimpsest, Autograd, m) {
  for (const char* name : {"abn_forward", "abn_forward_", "abn_backward", "abn_backward_"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace palimpsest::ops
