#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/abn/native.h"
#include "palimpsest/ops/common/find_operator.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/common/tracing.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

/// Registers torch.ops.palimpsest.abn*. This file holds the only conversions between the structs of
/// functional.h and the dispatcher's arguments, both ways. Names of activations and of saved tensors are text
/// only between the two conversions.
namespace palimpsest::ops::abn_detail {
namespace {

using at::Tensor;

// ---- The passes: structs of functional.h -> schema -> structs, for `Pass` = native or meta

struct Native {
  static constexpr auto forward = native::forward;
  static constexpr auto forward_ = native::forward_;
  static constexpr auto recompute_output = native::recompute_output;
  static constexpr auto backward = native::backward;
  static constexpr auto backward_ = native::backward_;
};

struct Meta {
  static constexpr auto forward = meta::forward;
  static constexpr auto forward_ = meta::forward_;
  static constexpr auto recompute_output = meta::recompute_output;
  static constexpr auto backward = meta::backward;
  static constexpr auto backward_ = meta::backward_;
};

/// Returns t, or a tensor of shape (0) if t is undefined: a schema's result cannot be undefined.
Tensor or_empty(Tensor t, const Tensor& like, at::ScalarType dtype) {
  return t.defined() ? std::move(t) : at::empty({0}, like.options().dtype(dtype));
}

/// Returns the second full-size result of a forward pass: the tensor saved aside, the branch bits, or none.
Tensor second_result(const Tensor& x, Tensor saved_values, Tensor branch) {
  if (saved_values.defined()) return saved_values;
  return or_empty(std::move(branch), x, x.scalar_type());
}

template <class Pass>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward_of(
    const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight, const OptionalTensor& bias,
    std::string_view activation, double activation_param, std::string_view saved, bool relu_residual,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training, double momentum,
    double eps, bool for_backward, std::string_view group) {
  auto [z, saved_values, s] = Pass::forward(x, {{residual, weight, bias, activation_from_name(activation),
                                                 activation_param, saved_from_name(saved), relu_residual},
                                                running_mean,
                                                running_var,
                                                training,
                                                momentum,
                                                eps,
                                                for_backward,
                                                std::string(group)});
  return {std::move(z),
          second_result(x, std::move(saved_values), std::move(s.branch)),
          std::move(s.channel_values),
          std::move(s.channel_index),
          std::move(s.mean),
          std::move(s.inv_std),
          or_empty(std::move(s.count), x, at::kDouble)};
}

template <class Pass>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> forward_in_place_of(
    const Tensor& x, const OptionalTensor& residual, const OptionalTensor& weight, const OptionalTensor& bias,
    std::string_view activation, double activation_param, std::string_view saved, bool relu_residual,
    const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training, double momentum,
    double eps, bool for_backward, std::string_view group) {
  auto [z, saved_values, s] = Pass::forward_(x, {{residual, weight, bias, activation_from_name(activation),
                                                  activation_param, saved_from_name(saved), relu_residual},
                                                 running_mean,
                                                 running_var,
                                                 training,
                                                 momentum,
                                                 eps,
                                                 for_backward,
                                                 std::string(group)});
  return {second_result(x, std::move(z), std::move(s.branch)),
          std::move(s.channel_values),
          std::move(s.channel_index),
          std::move(s.mean),
          std::move(s.inv_std),
          or_empty(std::move(s.count), x, at::kDouble)};
}

template <class Pass>
Tensor recompute_output_of(const Tensor& saved_values, const OptionalTensor& residual,
                           const OptionalTensor& weight, const OptionalTensor& bias,
                           std::string_view activation, double activation_param, std::string_view saved,
                           bool relu_residual, const Tensor& mean, const Tensor& inv_std) {
  return Pass::recompute_output(saved_values,
                                {residual, weight, bias, activation_from_name(activation), activation_param,
                                 saved_from_name(saved), relu_residual},
                                mean, inv_std);
}

template <class Pass>
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_of(
    const Tensor& dz, const Tensor& saved_values, const OptionalTensor& branch, const Tensor& channel_values,
    const Tensor& channel_index, const OptionalTensor& residual, const OptionalTensor& weight,
    const OptionalTensor& bias, std::string_view activation, double activation_param, std::string_view saved,
    bool relu_residual, const Tensor& mean, const Tensor& inv_std, bool training, bool need_sums, bool need_z,
    bool need_dx, bool need_dresidual, std::string_view group, const OptionalTensor& count) {
  auto g = Pass::backward(dz, {{residual, weight, bias, activation_from_name(activation), activation_param,
                                saved_from_name(saved), relu_residual},
                               saved_values,
                               or_undefined(branch),
                               channel_values,
                               channel_index,
                               mean,
                               inv_std,
                               training,
                               need_sums,
                               need_dx,
                               need_dresidual,
                               need_z,
                               std::string(group),
                               or_undefined(count)});
  const Tensor& like = saved_values;
  const auto type = like.scalar_type(), sums = accumulate_type(type);
  return {or_empty(std::move(g.dx), like, type), or_empty(std::move(g.dweight), like, sums),
          or_empty(std::move(g.dbias), like, sums), or_empty(std::move(g.dresidual), like, type),
          or_empty(std::move(g.z), like, type)};
}

template <class Pass>
std::tuple<Tensor, Tensor, Tensor, Tensor> backward_in_place_of(
    const Tensor& dz, const Tensor& saved_values, const OptionalTensor& branch, const Tensor& channel_values,
    const Tensor& channel_index, const OptionalTensor& residual, const OptionalTensor& weight,
    const OptionalTensor& bias, std::string_view activation, double activation_param, std::string_view saved,
    bool relu_residual, const Tensor& mean, const Tensor& inv_std, bool training, bool need_sums, bool need_z,
    bool need_dresidual, std::string_view group, const OptionalTensor& count) {
  auto g = Pass::backward_(dz, {{residual, weight, bias, activation_from_name(activation), activation_param,
                                 saved_from_name(saved), relu_residual},
                                saved_values,
                                or_undefined(branch),
                                channel_values,
                                channel_index,
                                mean,
                                inv_std,
                                training,
                                need_sums,
                                /*need_dx=*/true,
                                need_dresidual,
                                need_z,
                                std::string(group),
                                or_undefined(count)});
  const Tensor& like = saved_values;
  const auto type = like.scalar_type(), sums = accumulate_type(type);
  return {or_empty(std::move(g.dweight), like, sums), or_empty(std::move(g.dbias), like, sums),
          or_empty(std::move(g.dresidual), like, type), or_empty(std::move(g.z), like, type)};
}

bool saves_branch(const ForwardArguments& a) {
  return a.for_backward && a.settings.saved == Saved::kOutputBit;
}

// ---- The public operators

AbnOptions options_of(bool training, double momentum, double eps, std::string_view activation,
                      double activation_param, std::string_view group,
                      const std::optional<std::string_view>& saved, bool relu_residual,
                      const std::optional<std::string_view>& keep) {
  return {training,
          momentum,
          eps,
          activation_from_name(activation),
          activation_param,
          saved_from_arguments("abn", saved, keep),
          relu_residual,
          std::string(group)};
}

Tensor abn_of(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
              const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
              double momentum, double eps, std::string_view activation, double activation_param,
              const OptionalTensor& residual, std::string_view group, std::optional<std::string_view> saved,
              bool relu_residual, std::optional<std::string_view> keep) {
  return abn(
      x, {weight, bias, running_mean, running_var},
      options_of(training, momentum, eps, activation, activation_param, group, saved, relu_residual, keep),
      residual);
}

Tensor abn_in_place_of(Tensor x, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                       double momentum, double eps, std::string_view activation, double activation_param,
                       const OptionalTensor& residual, std::string_view group,
                       std::optional<std::string_view> saved, bool relu_residual,
                       std::optional<std::string_view> keep) {
  const AbnOptions options =
      options_of(training, momentum, eps, activation, activation_param, group, saved, relu_residual, keep);
  TORCH_CHECK(saves_output(options.saved),
              "[abn_] returns x, so saved must be 'output', 'output_form1' or 'output_bit', got saved='",
              saved_name(options.saved), "'; use abn");
  return abn_(std::move(x), {weight, bias, running_mean, running_var}, options, residual);
}

using RecomputableTensors = std::tuple<Tensor, Tensor, Tensor, Tensor>;

/// The layer, with what abn_recompute_output makes its output from: saved_values is y. Without a gradient all
/// but z are empty.
RecomputableTensors abn_recomputable_of(const Tensor& x, const OptionalTensor& weight,
                                        const OptionalTensor& bias, const OptionalTensor& running_mean,
                                        const OptionalTensor& running_var, bool training, double momentum,
                                        double eps, std::string_view activation, double activation_param,
                                        std::string_view group, bool consume) {
  const NormalizationTensors norm{weight, bias, running_mean, running_var};
  const OptionalTensor no_residual;
  const Inputs inputs{x, norm, no_residual};
  const AbnOptions options{training,
                           momentum,
                           eps,
                           activation_from_name(activation),
                           activation_param,
                           Saved::kPreActivation,
                           /*relu_residual=*/false,
                           std::string(group)};
  check(inputs, options);
  if (consume) check_in_place(inputs, options.saved, requires_gradient(inputs));
  Recomputable r = run_recomputable(inputs, options, consume);
  return {std::move(r.z), or_empty(std::move(r.saved_values), x, x.scalar_type()),
          or_empty(std::move(r.mean), x, at::kDouble), or_empty(std::move(r.inv_std), x, at::kDouble)};
}

RecomputableTensors abn_recomputable(const Tensor& x, const OptionalTensor& weight,
                                     const OptionalTensor& bias, const OptionalTensor& running_mean,
                                     const OptionalTensor& running_var, bool training, double momentum,
                                     double eps, std::string_view activation, double activation_param,
                                     std::string_view group) {
  return abn_recomputable_of(x, weight, bias, running_mean, running_var, training, momentum, eps, activation,
                             activation_param, group, /*consume=*/false);
}

RecomputableTensors abn_recomputable_(const Tensor& x, const OptionalTensor& weight,
                                      const OptionalTensor& bias, const OptionalTensor& running_mean,
                                      const OptionalTensor& running_var, bool training, double momentum,
                                      double eps, std::string_view activation, double activation_param,
                                      std::string_view group) {
  return abn_recomputable_of(x, weight, bias, running_mean, running_var, training, momentum, eps, activation,
                             activation_param, group, /*consume=*/true);
}

std::tuple<int64_t, int64_t, int64_t> fallback_stats() {
  const AbnFallbackStats stats = abn_fallback_stats();
  return {stats.layers, stats.channels, stats.late};
}

// abn and abn_ are composite: every mode of libtorch (no_grad, inference, tracing, functionalization) splits
// them into the autograd Function and the passes below, which need not know the modes.
TORCH_LIBRARY(palimpsest, m) {
  const std::string options =
      "bool training=True, float momentum=0.1, float eps=1e-5, str activation=\"leaky_relu\", "
      "float activation_param=0.01, Tensor? residual=None, str group=\"\", str? saved=None, "
      "bool relu_residual=False, str? keep=None)";
  m.def(("abn(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, " +
         options + " -> Tensor")
            .c_str(),
        &abn_of);
  m.def(("abn_(Tensor(a!) x, Tensor? weight, Tensor? bias, Tensor(b!)? running_mean, Tensor(c!)? "
         "running_var, " +
         options + " -> Tensor(a!)")
            .c_str(),
        &abn_in_place_of);
  const std::string layer =
      "bool training=True, float momentum=0.1, float eps=1e-5, str activation=\"relu\", "
      "float activation_param=0.01, str group=\"\") -> (Tensor z, Tensor saved_values, Tensor mean, "
      "Tensor inv_std)";
  m.def(("abn_recomputable(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
         "Tensor(b!)? running_var, " +
         layer)
            .c_str(),
        &abn_recomputable);
  m.def(("abn_recomputable_(Tensor(a!) x, Tensor? weight, Tensor? bias, Tensor(b!)? running_mean, "
         "Tensor(c!)? running_var, " +
         layer)
            .c_str(),
        &abn_recomputable_);
  m.def("abn_fallback_stats() -> (int layers, int channels, int late)", &fallback_stats);
  m.def("reset_abn_fallback_stats() -> ()", &reset_abn_fallback_stats);
  // The names before abn_fallback_stats.
  m.def("abn_fallback_count() -> int", [] { return abn_fallback_stats().layers; });
  m.def("abn_side_channel_count() -> int", [] { return abn_fallback_stats().channels; });
  m.def("abn_missed_channel_count() -> int", [] { return abn_fallback_stats().late; });
  m.def("reset_abn_fallback_count() -> ()", &reset_abn_fallback_stats);

  const std::string settings =
      "Tensor? residual, Tensor? weight, Tensor? bias, str activation, float activation_param, str saved, "
      "bool relu_residual, ";
  const std::string forward =
      "bool training, float momentum, float eps, bool for_backward, str group=\"\") -> ";
  const std::string backward =
      "Tensor saved_values, Tensor? branch, Tensor channel_values, Tensor channel_index, " + settings +
      "Tensor mean, Tensor inv_std, bool training, bool need_sums, ";
  const std::string group = "str group=\"\", Tensor? count=None";
  m.def(("abn_forward(Tensor x, " + settings + "Tensor(a!)? running_mean, Tensor(b!)? running_var, " +
         forward + "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("abn_forward_(Tensor(a!) x, " + settings + "Tensor(b!)? running_mean, Tensor(c!)? running_var, " +
         forward + "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("abn_recompute_output(Tensor saved_values, " + settings + "Tensor mean, Tensor inv_std) -> Tensor")
            .c_str());
  m.def(("abn_backward(Tensor dz, " + backward + "bool need_z, bool need_dx, bool need_dresidual, " + group +
         ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)")
            .c_str());
  m.def(("abn_backward_(Tensor(a!) dz, " + backward + "bool need_z, bool need_dresidual, " + group +
         ") -> (Tensor, Tensor, Tensor, Tensor)")
            .c_str());
}

template <class Pass>
void register_passes(torch::Library& m) {
  m.impl("abn_forward", &forward_of<Pass>);
  m.impl("abn_forward_", &forward_in_place_of<Pass>);
  m.impl("abn_recompute_output", &recompute_output_of<Pass>);
  m.impl("abn_backward", &backward_of<Pass>);
  m.impl("abn_backward_", &backward_in_place_of<Pass>);
}
TORCH_LIBRARY_IMPL(palimpsest, CPU, m) {
  register_passes<Native>(m);
}
TORCH_LIBRARY_IMPL(palimpsest, CUDA, m) {
  register_passes<Native>(m);
}
TORCH_LIBRARY_IMPL(palimpsest, Meta, m) {
  register_passes<Meta>(m);
}

// These registrations make a gradient through a pass an error. Otherwise it would be silently wrong.
TORCH_LIBRARY_IMPL(palimpsest, Autograd, m) {
  for (const char* name :
       {"abn_forward", "abn_forward_", "abn_recompute_output", "abn_backward", "abn_backward_"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

/// Skips autograd's kernels of the passes: they box all arguments and then do nothing, because the callers
/// differentiate by themselves. Tracing needs them. What they would refuse, a tangent, is refused here.
class BelowAutograd {
 public:
  BelowAutograd(const Tensor& t, const Settings& s) {
    refuse_tangents("abn", t, s.residual, s.weight, s.bias);
    if (!is_traced(t)) guard_.emplace();
  }

 private:
  std::optional<at::AutoDispatchBelowAutograd> guard_;
};

}  // namespace

ForwardResult forward(const Tensor& x, const ForwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_forward", forward_of<Native>);
  const BelowAutograd below_autograd(x, a.settings);
  const Settings& s = a.settings;
  auto [z, second, channel_values, channel_index, mean, inv_std, count] = op.call(
      x, s.residual, s.weight, s.bias, activation_name(s.activation), s.activation_param, saved_name(s.saved),
      s.relu_residual, a.running_mean, a.running_var, a.training, a.momentum, a.eps, a.for_backward, a.group);
  Tensor branch = defined_if(saves_branch(a), second);
  return {std::move(z),
          defined_if(saves_aside(s.saved), std::move(second)),
          {std::move(mean), std::move(inv_std), std::move(channel_values), std::move(channel_index),
           std::move(branch), defined_if(!a.group.empty(), std::move(count))}};
}

ForwardResult forward_(const Tensor& x, const ForwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_forward_", forward_in_place_of<Native>);
  const BelowAutograd below_autograd(x, a.settings);
  const Settings& s = a.settings;
  auto [second, channel_values, channel_index, mean, inv_std, count] = op.call(
      x, s.residual, s.weight, s.bias, activation_name(s.activation), s.activation_param, saved_name(s.saved),
      s.relu_residual, a.running_mean, a.running_var, a.training, a.momentum, a.eps, a.for_backward, a.group);
  Tensor branch = defined_if(saves_branch(a), second);
  return {defined_if(saves_aside(s.saved), std::move(second)),
          {},
          {std::move(mean), std::move(inv_std), std::move(channel_values), std::move(channel_index),
           std::move(branch), defined_if(!a.group.empty(), std::move(count))}};
}

Tensor recompute_output(const Tensor& saved_values, const Settings& s, const Tensor& mean,
                        const Tensor& inv_std) {
  static const auto op = find_operator("palimpsest::abn_recompute_output", recompute_output_of<Native>);
  const BelowAutograd below_autograd(saved_values, s);
  return op.call(saved_values, s.residual, s.weight, s.bias, activation_name(s.activation),
                 s.activation_param, saved_name(s.saved), s.relu_residual, mean, inv_std);
}

Gradients backward(const Tensor& dz, const BackwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_backward", backward_of<Native>);
  const BelowAutograd below_autograd(dz, a.settings);
  const Settings& s = a.settings;
  auto [dx, dweight, dbias, dresidual, z] = op.call(
      dz, a.saved_values, or_none(a.branch), a.channel_values, a.channel_index, s.residual, s.weight, s.bias,
      activation_name(s.activation), s.activation_param, saved_name(s.saved), s.relu_residual, a.mean,
      a.inv_std, a.training, a.need_sums, a.need_z, a.need_dx, a.need_dresidual, a.group, or_none(a.count));
  return {defined_if(a.need_dx, std::move(dx)), defined_if(a.need_sums, std::move(dweight)),
          defined_if(a.need_sums, std::move(dbias)), defined_if(a.need_dresidual, std::move(dresidual)),
          defined_if(a.need_z, std::move(z))};
}

Gradients backward_(Tensor dz, const BackwardArguments& a) {
  static const auto op = find_operator("palimpsest::abn_backward_", backward_in_place_of<Native>);
  const BelowAutograd below_autograd(dz, a.settings);
  const Settings& s = a.settings;
  auto [dweight, dbias, dresidual, z] = op.call(
      dz, a.saved_values, or_none(a.branch), a.channel_values, a.channel_index, s.residual, s.weight, s.bias,
      activation_name(s.activation), s.activation_param, saved_name(s.saved), s.relu_residual, a.mean,
      a.inv_std, a.training, a.need_sums, a.need_z, a.need_dresidual, a.group, or_none(a.count));
  return {std::move(dz), defined_if(a.need_sums, std::move(dweight)),
          defined_if(a.need_sums, std::move(dbias)), defined_if(a.need_dresidual, std::move(dresidual)),
          defined_if(a.need_z, std::move(z))};
}

}  // namespace palimpsest::ops::abn_detail
