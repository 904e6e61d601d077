#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/abn/native.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/synchronization/process_group.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::ops::abn_detail {
namespace {

bool wants_gradient(const OptionalTensor& t) {
  return t && t->requires_grad();
}

std::string name_of(const at::Tensor& t) {
  return std::string(c10::getDtypeNames(t.scalar_type()).first);  // "float32"
}

void check_x(const at::Tensor& x) {
  TORCH_CHECK(x.defined(), "[abn] x must be a tensor, got none");
  TORCH_CHECK(x.layout() == at::kStrided, "[abn] x must be a dense (strided) tensor, got layout ",
              x.layout());
  TORCH_CHECK(x.dim() >= 2 && x.dim() <= 5,
              "[abn] x must have 2 to 5 dimensions, (N, C) to (N, C, D, H, W), got shape ", x.sym_sizes());
  const auto type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16,
              "[abn] x must be float32, float64, float16 or bfloat16, got ", name_of(x));
  TORCH_CHECK(x.device().is_cpu() || x.device().is_cuda() || x.device().is_meta(),
              "[abn] x must be on the CPU or on a CUDA device, got ", x.device(),
              "; move it with x.to(\"cpu\")");
  TORCH_CHECK(x.sym_size(1) != 0, "[abn] x needs at least one channel (dimension 1), got shape ",
              x.sym_sizes());
}

void check_per_channel(const char* name, const OptionalTensor& t, const at::Tensor& x) {
  if (!t) return;
  TORCH_CHECK(t->defined(), "[abn] ", name, " must be a tensor or none, got an undefined tensor");
  const auto accumulate = accumulate_type(x.scalar_type());
  TORCH_CHECK(t->scalar_type() == accumulate || t->scalar_type() == x.scalar_type(), "[abn] ", name,
              " must be ", c10::getDtypeNames(accumulate).first,
              accumulate == x.scalar_type() ? "" : " or " + name_of(x), " where x is ", name_of(x), ", got ",
              name_of(*t));
  TORCH_CHECK(t->dim() == 1 && t->sym_size(0) == x.sym_size(1), "[abn] ", name,
              " needs one value per channel: x has shape ", x.sym_sizes(), ", ", name, " has shape ",
              t->sym_sizes());
  TORCH_CHECK(t->device() == x.device(), "[abn] ", name, " must be on the device of x, ", x.device(),
              ", got ", t->device());
}

void check_residual(const OptionalTensor& residual, const at::Tensor& x) {
  if (!residual) return;
  TORCH_CHECK(residual->defined(), "[abn] residual must be a tensor or none, got an undefined tensor");
  TORCH_CHECK(residual->scalar_type() == x.scalar_type(), "[abn] residual must be ", name_of(x),
              ", the type of x, got ", name_of(*residual));
  TORCH_CHECK(residual->sym_sizes() == x.sym_sizes(), "[abn] residual must have the shape of x, ",
              x.sym_sizes(), ", got ", residual->sym_sizes());
  TORCH_CHECK(residual->device() == x.device(), "[abn] residual must be on the device of x, ", x.device(),
              ", got ", residual->device());
}

/// For a message: "'gelu', 'gelu_tanh' or 'silu'".
std::string branched_activations() {
  std::vector<std::string> names;
  for (const auto& [activation, name, is_listed] : kernels::kActivations)
    if (is_listed && kernels::has_branches(activation)) names.push_back("'" + std::string(name) + "'");
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i) text += (i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

void check_saved(const AbnOptions& options) {
  const auto name = activation_name(options.activation);
  const bool branches = kernels::has_branches(options.activation);
  if (options.saved == Saved::kOutputBit) {
    TORCH_CHECK(branches, "[abn] saved='output_bit' needs ", branched_activations(), ", got '", name,
                "'; take saved=",
                kernels::is_invertible(options.activation)
                    ? "'output', which needs no bit for it"
                    : "'pre_activation', 'normalized' or 'input' with it");
    return;
  }
  TORCH_CHECK(!saves_output(options.saved) || kernels::is_invertible(options.activation),
              "[abn] a layer that saves only its output needs an invertible activation, got '", name,
              "'; take saved=", branches ? "'output_bit', " : "",
              "'pre_activation', 'normalized' or 'input' with it, or use 'leaky_relu' with a small slope");
}

void check_numbers(const AbnOptions& options) {
  TORCH_CHECK(options.eps >= 0 && std::isfinite(options.eps),
              "[abn] eps must be finite and not negative, got ", options.eps);
  TORCH_CHECK(
      options.momentum >= 0 && options.momentum <= 1,
      "[abn] momentum, the weight of the new batch in the running statistics, must be in [0, 1], got ",
      options.momentum);
  const double param = options.activation_param;
  if (options.activation == Activation::kLeakyReLU)
    TORCH_CHECK(param >= 0 && param <= 1, "[abn] leaky_relu's slope must be in [0, 1], got ", param);
  if (options.activation == Activation::kELU)
    TORCH_CHECK(param >= 0 && std::isfinite(param), "[abn] elu's alpha must be finite and not negative, got ",
                param);
}

/// Refuses the views that autograd cannot follow when they are written over.
void check_view(const at::Tensor& x) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(x);
  if (view == nullptr || !view->has_bw_view()) return;
  using torch::autograd::CreationMeta;
  const CreationMeta made = view->get_creation_meta();
  TORCH_CHECK(made != CreationMeta::MULTI_OUTPUT_NODE,
              "[abn_] x must not be one of several views made at once (chunk, split, unbind), which autograd "
              "cannot follow when one is written over, got one of shape ",
              x.sym_sizes(), "; use abn, or narrow or select in place of the split");
  TORCH_CHECK(made == CreationMeta::DEFAULT,
              "[abn_] x must not be a view made under no_grad, inference mode or inside a custom function, "
              "got one of shape ",
              x.sym_sizes(), "; use abn, or make the view where gradients are recorded");
  const at::TensorBase& base = x._base();
  TORCH_CHECK(!(base.is_leaf() && base.requires_grad()),
              "[abn_] x must not be a view of a leaf that requires grad, got a view of shape ", x.sym_sizes(),
              " of a leaf of shape ", base.sym_sizes(), "; use abn, or pass x.clone()");
}

}  // namespace

bool shares_statistics(const AbnOptions& options) {
  return options.training && !options.group.empty() && synchronization::size(options.group) > 1;
}

bool requires_gradient(const Inputs& inputs) {
  return c10::GradMode::is_enabled() && (inputs.x.requires_grad() || wants_gradient(inputs.norm.weight) ||
                                         wants_gradient(inputs.norm.bias) || wants_gradient(inputs.residual));
}

void check(const Inputs& inputs, const AbnOptions& options) {
  const at::Tensor& x = inputs.x;
  const NormalizationTensors& norm = inputs.norm;
  check_x(x);
  check_per_channel("weight", norm.weight, x);
  check_per_channel("bias", norm.bias, x);
  check_per_channel("running_mean", norm.running_mean, x);
  check_per_channel("running_var", norm.running_var, x);
  TORCH_CHECK(norm.running_mean.has_value() == norm.running_var.has_value(),
              "[abn] running_mean and running_var go together, got only ",
              norm.running_mean ? "running_mean" : "running_var");
  check_residual(inputs.residual, x);
  check_saved(options);
  check_numbers(options);
  if (options.training) {
    // A group knows how many values it has when it has gathered the statistics.
    TORCH_CHECK_VALUE(shares_statistics(options) || x.sym_numel() > x.sym_size(1) || x.sym_numel() == 0,
                      "[abn] training needs more than one value per channel, got shape ", x.sym_sizes(),
                      "; use a larger batch, or frozen statistics (training = false)");
  } else {
    TORCH_CHECK(norm.running_mean,
                "[abn] training = false normalizes with the running statistics, got none; ",
                "pass running_mean and running_var, or training = true");
  }
}

void check_apart_from_x(const char* name, const OptionalTensor& t, const at::Tensor& x) {
  TORCH_CHECK(!t || !may_share_memory(*t, x), "[abn_] x is written over, so ", name,
              " must not share memory with x, got a ", name, " of shape ", t->sym_sizes(),
              " that does; use abn");
}

void check_in_place(const Inputs& inputs, Saved saved, bool recorded) {
  const at::Tensor& x = inputs.x;
  const NormalizationTensors& norm = inputs.norm;
  TORCH_CHECK(saved != Saved::kInput, "[abn_] writes over x, which saved='input' still needs; use abn");
  TORCH_CHECK(!may_overlap_itself(x),
              "[abn_] x is written over, so no two of its elements may share memory, got shape ",
              x.sym_sizes(), " with strides ", x.sym_strides(), "; use abn, or x.contiguous()");
  check_apart_from_x("residual", inputs.residual, x);
  check_apart_from_x("weight", norm.weight, x);
  check_apart_from_x("bias", norm.bias, x);
  check_apart_from_x("running_mean", norm.running_mean, x);
  check_apart_from_x("running_var", norm.running_var, x);
  TORCH_CHECK(!x.is_inference() || c10::InferenceMode::is_enabled(),
              "[abn_] x must not be a tensor made in inference mode, outside that mode, got one of shape ",
              x.sym_sizes(), "; use abn, or pass x.clone()");
  if (!recorded) return;
  check_view(x);
  TORCH_CHECK(
      !(x.is_leaf() && x.requires_grad()),
      "[abn_] x must not be a leaf that requires grad, whose value its owner still needs, got one of shape ",
      x.sym_sizes(), "; use abn, or pass x.clone()");
}

namespace {

/// Checks what every pass of the inner operators reads: `values` is x or a tensor of its shape.
void check_settings(const at::Tensor& values, const Settings& s) {
  check_x(values);
  check_per_channel("weight", s.weight, values);
  check_per_channel("bias", s.bias, values);
  check_residual(s.residual, values);
  AbnOptions options;
  options.activation = s.activation;
  options.activation_param = s.activation_param;
  check_numbers(options);
}

/// Checks that a backward pass can start from `saved`.
void check_inverse(const at::Tensor& values, const Settings& s) {
  AbnOptions options;
  options.activation = s.activation;
  options.activation_param = s.activation_param;
  options.saved = s.saved;
  check_saved(options);
  TORCH_CHECK(saved_for(options, values.scalar_type()) == s.saved, "[abn] saved='", saved_name(s.saved),
              "' cannot be inverted in ", name_of(values), " with ", activation_name(s.activation), "(",
              s.activation_param, "); take 'pre_activation'");
}

void check_statistic(const char* name, const at::Tensor& t, const at::Tensor& values) {
  TORCH_CHECK(t.defined() && t.scalar_type() == at::kDouble && t.dim() == 1 &&
                  t.sym_size(0) == values.sym_size(1) && t.device() == values.device() && t.is_contiguous(),
              "[abn] ", name, " must be ", values.sym_size(1), " contiguous float64 values on ",
              values.device(), ", got ",
              t.defined() ? c10::str(name_of(t), " of shape ", t.sym_sizes()) : "none");
}

void check_like(const char* name, const at::Tensor& t, const at::Tensor& values) {
  TORCH_CHECK(t.defined() && t.scalar_type() == values.scalar_type() && t.device() == values.device() &&
                  t.layout() == at::kStrided && t.sym_sizes() == values.sym_sizes(),
              "[abn] ", name, " must have the shape, dtype and device of the saved values, ",
              values.sym_sizes(), " ", name_of(values), " on ", values.device(), ", got ",
              t.defined() ? c10::str(t.sym_sizes(), " ", name_of(t), " on ", t.device()) : "none");
}

}  // namespace

void check_forward_pass(const at::Tensor& x, const ForwardArguments& a) {
  const Settings& s = a.settings;
  check({x, {s.weight, s.bias, a.running_mean, a.running_var}, s.residual},
        {a.training, a.momentum, a.eps, s.activation, s.activation_param,
         a.for_backward ? s.saved : Saved::kInput, s.relu_residual, a.group});
  if (a.for_backward) check_inverse(x, s);
}

void check_output_pass(const at::Tensor& saved_values, const Settings& s, const at::Tensor& mean,
                       const at::Tensor& inv_std) {
  check_settings(saved_values, s);
  TORCH_CHECK(is_before_activation(s.saved), "[abn] the output is computed again from 'pre_activation', ",
              "'normalized' or 'input', got saved='", saved_name(s.saved), "'");
  check_statistic("mean", mean, saved_values);
  check_statistic("inv_std", inv_std, saved_values);
}

void check_backward_pass(const at::Tensor& dz, const BackwardArguments& a, bool in_place) {
  const at::Tensor& values = a.saved_values;
  const Settings& s = a.settings;
  check_settings(values, s);
  check_inverse(values, s);
  check_like("dz", dz, values);
  check_statistic("mean", a.mean, values);
  check_statistic("inv_std", a.inv_std, values);
  TORCH_CHECK(!a.need_z || is_before_activation(s.saved),
              "[abn] backward computes z only from 'pre_activation', 'normalized' or 'input', got saved='",
              saved_name(s.saved), "'");
  TORCH_CHECK(!a.need_dresidual || s.residual, "[abn] there is no residual to differentiate");
  TORCH_CHECK(!is_synchronized(a) || (a.count.scalar_type() == at::kDouble && a.count.numel() == 1 &&
                                      a.count.device() == values.device()),
              "[abn] count must be one float64 value on ", values.device(), ", got ",
              a.count.defined() ? c10::str(a.count.sizes(), " ", name_of(a.count), " on ", a.count.device())
                                : "none");
  const auto bytes = kernels::branch_bytes(values.numel());
  TORCH_CHECK(s.saved != Saved::kOutputBit ||
                  (a.branch.defined() && a.branch.scalar_type() == at::kByte && a.branch.is_contiguous() &&
                   a.branch.numel() == bytes && a.branch.device() == values.device()),
              "[abn] saved='output_bit' needs ", bytes, " contiguous bytes of branches on ", values.device(),
              ", got ", a.branch.defined() ? c10::str(a.branch.sizes(), " ", name_of(a.branch)) : "none");
  TORCH_CHECK(a.channel_values.scalar_type() == values.scalar_type() &&
                  a.channel_values.device() == values.device() &&
                  a.channel_index.scalar_type() == at::kLong && a.channel_index.device() == values.device(),
              "[abn] saved channels must be ", name_of(values), " values and int64 indices on ",
              values.device(), ", got ", name_of(a.channel_values), " and ", name_of(a.channel_index));
  if (!in_place) return;
  TORCH_CHECK(!may_overlap_itself(dz) && !may_share_memory(dz, values) &&
                  !(s.residual && may_share_memory(dz, *s.residual)),
              "[abn] dz is written over, so its elements must not share memory with one another, with the "
              "saved values or with the residual; use abn_backward");
}

}  // namespace palimpsest::ops::abn_detail
