#include "palimpsest/ops/abn/check.h"

#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <string>

namespace palimpsest::ops {
namespace {

std::string name_of(const at::Tensor& t) {
  return c10::getDtypeNames(t.scalar_type()).first;
}  // "float32"

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

void check_per_channel(const char* name, const std::optional<at::Tensor>& t, const at::Tensor& x) {
  if (!t) return;
  TORCH_CHECK(t->defined(), "[abn] ", name, " must be a tensor or none, got an undefined tensor");
  const auto maths = accumulate_type(x.scalar_type());
  TORCH_CHECK(t->scalar_type() == maths || t->scalar_type() == x.scalar_type(), "[abn] ", name, " must be ",
              c10::getDtypeNames(maths).first, maths == x.scalar_type() ? "" : " or " + name_of(x),
              " where x is ", name_of(x), ", got ", name_of(*t));
  TORCH_CHECK(t->dim() == 1 && t->sym_size(0) == x.sym_size(1), "[abn] ", name,
              " needs one value per channel: x has shape ", x.sym_sizes(), ", ", name, " has shape ",
              t->sym_sizes());
  TORCH_CHECK(t->device() == x.device(), "[abn] ", name, " must be on the device of x, ", x.device(),
              ", got ", t->device());
}

void check_residual(const std::optional<at::Tensor>& residual, const at::Tensor& x) {
  if (!residual) return;
  TORCH_CHECK(residual->defined(), "[abn] residual must be a tensor or none, got an undefined tensor");
  TORCH_CHECK(residual->scalar_type() == x.scalar_type(), "[abn] residual must be ", name_of(x),
              ", the type of x, got ", name_of(*residual));
  TORCH_CHECK(residual->sym_sizes() == x.sym_sizes(), "[abn] residual must have the shape of x, ",
              x.sym_sizes(), ", got ", residual->sym_sizes());
  TORCH_CHECK(residual->device() == x.device(), "[abn] residual must be on the device of x, ", x.device(),
              ", got ", residual->device());
}

void check_keep(const AbnOptions& options) {
  const auto name = activation_name(options.activation);
  const bool branches = kernels::has_branches(options.activation);
  if (options.keep == Saved::kOutputBit) {
    TORCH_CHECK(branches,
                "[abn] the bit that tells a falling from a rising branch is for 'gelu', 'gelu_tanh' and "
                "'silu', got '",
                name, "'; keep ",
                kernels::is_invertible(options.activation)
                    ? "'output' with it, which can be inverted without one"
                    : "'scaled' (y), 'normalized' or 'input' with it");
    return;
  }
  TORCH_CHECK(!saves_output(options.keep) || kernels::is_invertible(options.activation),
              "[abn] a layer that keeps its output only needs an activation that can be inverted, got '",
              name, "'; keep ", branches ? "'output_bit', " : "",
              "'scaled' (y), 'normalized' or 'input' with it, or use 'leaky_relu' with a small slope");
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
    TORCH_CHECK(param > 0 && param <= 1, "[abn] leaky_relu's slope must be in (0, 1] to be invertible, got ",
                param, param == 0 ? "; a slope of 0 is ReLU: take a small one, such as 0.01" : "");
  if (options.activation == Activation::kELU)
    TORCH_CHECK(param > 0 && std::isfinite(param), "[abn] elu's alpha must be positive and finite, got ",
                param);
}

/// Which views autograd can follow when one is written over.
void check_view(const at::Tensor& x) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(x);
  if (view == nullptr || !view->has_bw_view()) return;
  using torch::autograd::CreationMeta;
  const CreationMeta made = view->get_creation_meta();
  TORCH_CHECK(made != CreationMeta::MULTI_OUTPUT_NODE,
              "[abn_] x must not be one of several views made at once (chunk, split, unbind), which autograd "
              "cannot follow "
              "when one is written over, got one of shape ",
              x.sym_sizes(), "; use abn, or narrow or select in place of the split");
  TORCH_CHECK(made == CreationMeta::DEFAULT,
              "[abn_] x must not be a view made under no_grad, inference mode or inside a custom function, "
              "got one of "
              "shape ",
              x.sym_sizes(), "; use abn, or make the view where gradients are recorded");
  const at::TensorBase& base = x._base();
  TORCH_CHECK(!(base.is_leaf() && base.requires_grad()),
              "[abn_] x must not be a view of a leaf that requires grad, got a view of shape ", x.sym_sizes(),
              " of a leaf of shape ", base.sym_sizes(), "; use abn, or pass x.clone()");
}

}  // namespace

void check_abn(const AbnTensors& tensors, const AbnOptions& options) {
  const at::Tensor& x = tensors.x;
  check_x(x);
  check_per_channel("weight", tensors.weight, x);
  check_per_channel("bias", tensors.bias, x);
  check_per_channel("running_mean", tensors.running_mean, x);
  check_per_channel("running_var", tensors.running_var, x);
  TORCH_CHECK(tensors.running_mean.has_value() == tensors.running_var.has_value(),
              "[abn] running_mean and running_var go together, got only ",
              tensors.running_mean ? "running_mean" : "running_var");
  check_residual(tensors.residual, x);
  check_keep(options);
  check_numbers(options);
  if (options.training) {
    TORCH_CHECK(x.sym_numel() > x.sym_size(1),
                "[abn] training needs more than one value per channel, got shape ", x.sym_sizes(),
                "; use a larger batch, or training=False with running statistics");
  } else {
    TORCH_CHECK(tensors.running_mean,
                "[abn] training=False normalizes with the running statistics, got none; ",
                "pass running_mean and running_var, or training=True");
  }
}

void check_in_place(const at::Tensor& x, Saved keep, bool differentiable) {
  TORCH_CHECK(keep != Saved::kInput,
              "[abn_] writes over x, which a layer that keeps 'input' still needs; use abn");
  TORCH_CHECK(!may_overlap_itself(x),
              "[abn_] x is written over, so no two of its elements may share memory, got shape ",
              x.sym_sizes(), " with strides ", x.sym_strides(), "; use abn, or x.contiguous()");
  TORCH_CHECK(!x.is_inference() || c10::InferenceMode::is_enabled(),
              "[abn_] x must not be a tensor made in inference mode, outside that mode, got one of shape ",
              x.sym_sizes(), "; use abn, or pass x.clone()");
  if (!differentiable) return;
  check_view(x);
  TORCH_CHECK(
      !(x.is_leaf() && x.requires_grad()),
      "[abn_] x must not be a leaf that requires grad, whose value its owner still needs, got one of shape ",
      x.sym_sizes(), "; use abn, or pass x.clone()");
}

}  // namespace palimpsest::ops
