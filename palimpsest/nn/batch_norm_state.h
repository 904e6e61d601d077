#pragma once

#include "palimpsest/base/recomputing.h"
#include "palimpsest/nn/activation.h"
#include "palimpsest/ops/abn.h"

#include <torch/arg.h>
#include <torch/nn/cloneable.h>
#include <torch/types.h>

#include <optional>
#include <utility>

namespace palimpsest::nn {

/// Options of InPlaceABN, e.g. InPlaceABNOptions(64).activation(Activation::kELU).activation_param(1.0).
/// "Later change" below means a change through `module->options` after construction.
struct InPlaceABNOptions {
  /* implicit */ InPlaceABNOptions(int64_t channels) : channels_(channels) {}

  /// Leaky ReLU's slope: another name for activation_param, for code that has only that activation.
  InPlaceABNOptions& slope(double slope) { return activation_param(slope); }

  /// Channels of the input (its dimension 1). No default. A later change has no effect.
  TORCH_ARG(int64_t, channels);
  /// Added to the variance for numerical stability. Default: 1e-5. A later change takes effect at the next
  /// forward.
  TORCH_ARG(double, eps) = 1e-5;
  /// running <- (1 - momentum) * running + momentum * batch. Default: 0.1. std::nullopt: cumulative average,
  /// momentum = 1 / num_batches_tracked. A later change takes effect at the next forward.
  TORCH_ARG(std::optional<double>, momentum) = 0.1;
  /// Whether there are a learnable weight (starts at 1) and bias (starts at 0). Default: true. A later change
  /// has no effect.
  TORCH_ARG(bool, affine) = true;
  /// Whether running statistics are kept and used in eval mode; without them eval mode normalizes with the
  /// batch's own. Default: true. A later change has no effect.
  TORCH_ARG(bool, track_running_stats) = true;
  /// Applied after the normalization; it must be invertible. Default: leaky ReLU. A later change takes effect
  /// at the next forward.
  TORCH_ARG(Activation, activation) = Activation::kLeakyReLU;
  /// Leaky ReLU's slope, in (0, 1], or ELU's alpha, above 0. Default: 0.01. A later change takes effect at
  /// the next forward.
  TORCH_ARG(double, activation_param) = 0.01;
  /// Write the output over the input. false: a fresh output, still the only full-size tensor kept; for an
  /// input that somebody else reads (a shortcut). Default: true. A later change takes effect at the next
  /// forward.
  TORCH_ARG(bool, in_place) = true;
};

/// What every normalization module here owns: BatchNorm2d's parameters and buffers under BatchNorm2d's names,
/// in its order (weight, bias, running_mean, running_var, num_batches_tracked), so that state dicts are
/// interchangeable. Undefined tensors where affine or track_running_stats is off.
template <class Derived>
class BatchNormState : public torch::nn::Cloneable<Derived> {
 public:
  explicit BatchNormState(const InPlaceABNOptions& options_) : options(options_) {
    check_activation_param(options.activation(), options.activation_param());
    BatchNormState::reset();
  }

  /// Registers the tensors, then reset_parameters(). For the constructor and clone(): a second registration
  /// of a name is an error, so a user who wants a fresh start calls reset_parameters().
  void reset() override {
    const auto channels = options.channels();
    const bool affine = options.affine(), track = options.track_running_stats();
    weight = this->register_parameter("weight", affine ? torch::empty({channels}) : at::Tensor(), affine);
    bias = this->register_parameter("bias", affine ? torch::empty({channels}) : at::Tensor(), affine);
    running_mean = this->register_buffer("running_mean", track ? torch::empty({channels}) : at::Tensor());
    running_var = this->register_buffer("running_var", track ? torch::empty({channels}) : at::Tensor());
    num_batches_tracked =
        this->register_buffer("num_batches_tracked", track ? torch::empty({}, torch::kInt64) : at::Tensor());
    reset_parameters();
  }

  /// weight 1, bias 0, running mean 0, running variance 1, no batch seen.
  void reset_parameters() {
    torch::NoGradGuard no_grad;
    if (weight.defined()) weight.fill_(1);
    if (bias.defined()) bias.zero_();
    reset_running_stats();
  }

  void reset_running_stats() {
    if (!running_mean.defined()) return;
    running_mean.zero_();
    running_var.fill_(1);
    num_batches_tracked.zero_();
  }

  InPlaceABNOptions options;
  /// In eval mode the activation is all that is left of the layer: keep_activation_only (nn/fold.h) sets it.
  bool activation_only = false;
  at::Tensor weight, bias;               ///< (C)
  at::Tensor running_mean, running_var;  ///< (C)
  at::Tensor num_batches_tracked;        ///< i64 scalar: training forwards so far

  bool only_activation() const { return activation_only && !this->is_training(); }

  /// The same tensors as operators take them.
  ops::NormalizationTensors tensors() const {
    return {optional(weight), optional(bias), optional(running_mean), optional(running_var)};
  }

 protected:
  /// Counts this batch (training mode only, and once: not again when a segment is recomputed) and says how
  /// the operator is to run.
  ops::AbnOptions begin_forward() {
    ops::AbnOptions layer;
    layer.training = this->is_training() || !running_mean.defined();
    layer.momentum = options.momentum().value_or(0);
    layer.eps = options.eps();
    layer.activation = options.activation();
    layer.activation_param = options.activation_param();
    if (this->is_training() && num_batches_tracked.defined() && !recomputing()) {
      num_batches_tracked.add_(1);
      if (!options.momentum())
        layer.momentum = 1.0 / static_cast<double>(num_batches_tracked.template item<int64_t>());
    }
    return layer;
  }

  /// The activation alone, over x if the options say so; whether the layer is that now says
  /// only_activation().
  at::Tensor activate_only(at::Tensor x) const {
    if (options.in_place()) return activate_(std::move(x), options.activation(), options.activation_param());
    if (options.activation() == Activation::kIdentity)
      return x.clone();  // whoever reads it may write over it
    return activate(x, options.activation(), options.activation_param());
  }

  /// The fused layer, over x or out of place as the options (and what is kept) say.
  at::Tensor forward_fused(at::Tensor x, const ops::AbnOptions& layer,
                           const std::optional<at::Tensor>& residual = std::nullopt) const {
    const ops::NormalizationTensors norm = tensors();
    return options.in_place() && layer.saved != ops::Saved::kInput
               ? ops::abn_(std::move(x), norm, layer, residual)
               : ops::abn(x, norm, layer, residual);
  }

  static std::optional<at::Tensor> optional(const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  }
};

}  // namespace palimpsest::nn
