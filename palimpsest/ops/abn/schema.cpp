#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/names.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <string>
#include <utility>

/// Everything that torch.ops.palimpsest holds.
namespace palimpsest::ops {
namespace {

AbnOptions options_of(bool training, double momentum, double eps, std::string_view activation,
                      double activation_param, std::string_view group, std::string_view keep,
                      bool relu_residual) {
  TORCH_CHECK(group.empty(), "[abn] statistics over a process group are not supported yet, got group '",
              group, "'; leave it empty");
  return {
      training,     momentum, eps, activation_from_name(activation), activation_param, keep_from_name(keep),
      relu_residual};
}

#define PALIMPSEST_ABN_ARGUMENTS                                                                \
  const OptionalTensor &weight, const OptionalTensor &bias, const OptionalTensor &running_mean, \
      const OptionalTensor &running_var, bool training, double momentum, double eps,            \
      std::string_view activation, double activation_param, const OptionalTensor &residual,     \
      std::string_view group, std::string_view keep, bool relu_residual

at::Tensor abn_by_name(const at::Tensor& x, PALIMPSEST_ABN_ARGUMENTS) {
  return abn(x, weight, bias, running_mean, running_var,
             options_of(training, momentum, eps, activation, activation_param, group, keep, relu_residual),
             residual);
}

at::Tensor abn_by_name_(at::Tensor x, PALIMPSEST_ABN_ARGUMENTS) {
  TORCH_CHECK(saves_output(keep_from_name(keep)),
              "[abn_] returns x, so it can keep 'output', 'output_form1' or 'output_bit' only, got keep '",
              keep, "'; use abn");
  return abn_(std::move(x), weight, bias, running_mean, running_var,
              options_of(training, momentum, eps, activation, activation_param, group, keep, relu_residual),
              residual);
}

// abn and abn_ are composite: every mode of libtorch (no_grad, inference, tracing, functionalization) takes
// them apart into the autograd Function and the inner operators below, which need no knowledge of those
// modes.
TORCH_LIBRARY(palimpsest, m) {
  const std::string options =
      "bool training=True, float momentum=0.1, float eps=1e-5, str activation=\"leaky_relu\", "
      "float activation_param=0.01, Tensor? residual=None, str group=\"\", str keep=\"output\", "
      "bool relu_residual=False)";
  m.def(("abn(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, " +
         options + " -> Tensor")
            .c_str(),
        &abn_by_name);
  m.def(("abn_(Tensor(a!) x, Tensor? weight, Tensor? bias, Tensor(b!)? running_mean, Tensor(c!)? "
         "running_var, " +
         options + " -> Tensor(a!)")
            .c_str(),
        &abn_by_name_);
  m.def("abn_fallback_count() -> int", &abn_fallback_count);
  m.def("abn_side_channel_count() -> int", &abn_side_channel_count);
  m.def("abn_missed_channel_count() -> int", &abn_missed_channel_count);
  m.def("reset_abn_fallback_count() -> ()", &reset_abn_fallback_count);

  const std::string settings =
      "Tensor? residual, Tensor? weight, Tensor? bias, str activation, float activation_param, str keep, "
      "bool relu_residual, ";
  const std::string forward = "bool training, float momentum, float eps, bool for_backward) -> ";
  const std::string backward = "Tensor kept, Tensor? branch, Tensor side, " + settings +
                               "Tensor mean, Tensor inv_std, bool training, bool need_sums, ";
  m.def(("abn_forward(Tensor x, " + settings + "Tensor(a!)? running_mean, Tensor(b!)? running_var, " +
         forward + "(Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("abn_forward_(Tensor(a!) x, " + settings + "Tensor(b!)? running_mean, Tensor(c!)? running_var, " +
         forward + "(Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("abn_rebuild(Tensor kept, " + settings + "Tensor mean, Tensor inv_std) -> Tensor").c_str());
  m.def(("abn_backward(Tensor dz, " + backward +
         "bool need_z, bool need_dx, bool need_dresidual) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("abn_backward_(Tensor(a!) dz, " + backward +
         "bool need_z, bool need_dresidual) -> (Tensor, Tensor, Tensor, Tensor)")
            .c_str());
}

void register_dense(torch::Library& m) {
  m.impl("abn_forward", &dense::abn_forward);
  m.impl("abn_forward_", &dense::abn_forward_);
  m.impl("abn_rebuild", &dense::abn_rebuild);
  m.impl("abn_backward", &dense::abn_backward);
  m.impl("abn_backward_", &dense::abn_backward_);
}
TORCH_LIBRARY_IMPL(palimpsest, CPU, m) {
  register_dense(m);
}
TORCH_LIBRARY_IMPL(palimpsest, CUDA, m) {
  register_dense(m);
}

TORCH_LIBRARY_IMPL(palimpsest, Meta, m) {
  m.impl("abn_forward", &meta::abn_forward);
  m.impl("abn_forward_", &meta::abn_forward_);
  m.impl("abn_rebuild", &meta::abn_rebuild);
  m.impl("abn_backward", &meta::abn_backward);
  m.impl("abn_backward_", &meta::abn_backward_);
}

// Without these a gradient through an inner operator would be silently wrong; with them it is an error.
TORCH_LIBRARY_IMPL(palimpsest, Autograd, m) {
  for (const char* name : {"abn_forward", "abn_forward_", "abn_rebuild", "abn_backward", "abn_backward_"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace palimpsest::ops
