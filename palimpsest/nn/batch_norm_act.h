#pragma once

#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/deferred_activation.h"
#include "palimpsest/nn/norm_options.h"
#include "palimpsest/ops/abn.h"

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

namespace torch::nn {
class Conv2dImpl;
}

namespace palimpsest::nn {

/// Options of BatchNormAct, e.g. BatchNormActOptions(64).strategy(Strategy::kStoreY).eps(1e-3).
/// "Later change" below means a change through `module->options` after construction.
struct BatchNormActOptions {
  /* implicit */ BatchNormActOptions(int64_t channels, const NormOptions& norm = {})
      : channels_(channels),
        strategy_(norm.strategy),
        activation_(norm.activation),
        activation_param_(norm.activation_param),
        in_place_(norm.in_place),
        group_(norm.group) {}

  /// Sets leaky ReLU's slope: another name for activation_param, for code that has only that activation.
  BatchNormActOptions& slope(double slope) { return activation_param(slope); }

  /// Channels of the input (its dimension 1). No default. A later change has no effect.
  TORCH_ARG(int64_t, channels);
  /// Added to the variance for numerical stability. Default: 1e-5. A later change takes effect at the next
  /// forward.
  TORCH_ARG(double, eps) = 1e-5;
  /// running <- (1 - momentum) * running + momentum * batch. Default: 0.1. std::nullopt: cumulative average,
  /// momentum = 1 / num_batches_tracked. A later change takes effect at the next forward.
  TORCH_ARG(std::optional<double>, momentum) = 0.1;
  /// true: the layer has a learnable weight (starts at 1) and bias (starts at 0). Default: true. A later
  /// change has no effect.
  TORCH_ARG(bool, affine) = true;
  /// true: the layer has running statistics, and eval mode normalizes with them. false: eval mode normalizes
  /// with the statistics of the batch. Default: true. A later change has no effect.
  TORCH_ARG(bool, track_running_stats) = true;
  /// Decides which tensor is saved for backward. Default: inplace_2, which saves the output. A later change
  /// takes effect at the next forward; only that forward checks it against the activation.
  TORCH_ARG(Strategy, strategy);
  /// The activation after the normalization. Default: leaky ReLU. A later change takes effect at the next
  /// forward.
  TORCH_ARG(Activation, activation);
  /// Leaky ReLU's slope, in [0, 1], or ELU's alpha, 0 or above. Default: 0.01. At 0 (exactly ReLU), or if too
  /// small for the dtype (ops::saved_for), the output does not determine the input: an inplace strategy then
  /// saves what store_y saves, the pre-activation over the input, beside the output. A later change takes
  /// effect at the next forward.
  TORCH_ARG(double, activation_param);
  /// true: writes the saved tensor over the input. false: leaves the input as it is, for an input that has
  /// another reader (a shortcut); one full-size tensor is saved all the same. `standard` always leaves the
  /// input as it is; so does `checkpoint`, except without an activation and in forward_residual. Default:
  /// true. A later change takes effect at the next forward.
  TORCH_ARG(bool, in_place);
  /// The name of a process group (distributed::Group::name) whose ranks normalize with the statistics of all
  /// their batches together. Default: "", the statistics of this process. Every rank must then run the layer
  /// in each step, with an empty batch if need be. Eval mode ignores it. `standard` then runs the fused layer
  /// too, because libtorch has no such layer, but saves x and z all the same. A later change takes effect at
  /// the next forward.
  TORCH_ARG(std::string, group);

 public:
  template <class Other>
    requires(!std::is_convertible_v<Other, Activation>)
  BatchNormActOptions& activation(const Other&) {
    static_assert(std::is_void_v<Other>,
                  "activation() takes a palimpsest::Activation, e.g. nn::Activation::kReLU or "
                  "nn::parse_activation(\"relu\")");
    return *this;
  }
  template <class Other>
    requires(!std::is_convertible_v<Other, Strategy>)
  BatchNormActOptions& strategy(const Other&) {
    static_assert(std::is_void_v<Other>,
                  "strategy() takes a palimpsest::nn::Strategy, e.g. nn::Strategy::kStoreY or "
                  "nn::parse_strategy(\"store_y\")");
    return *this;
  }
};

/// Batch normalization + activation by strategy:
///   y = weight * (x - mean) / sqrt(var + eps) + bias,   z = act(y)
/// `standard` runs libtorch's batch norm, then the activation, in place where its backward reads z; both x
/// and z (else y) are saved. The other strategies run the fused layer, which saves one tensor. All have the
/// same outputs, gradients, running statistics and state-dict keys, so that one word switches a model. The
/// keys, their order and the initial values are those of BatchNorm2d: weight, bias, running_mean,
/// running_var, num_batches_tracked.
///   nn::BatchNormAct(64);   nn::BatchNormAct(nn::BatchNormActOptions(64).strategy(nn::Strategy::kStoreY));
///
/// x: (N, C, ...) of rank 2 to 5, f32, f64, f16 or bf16, any strides (NCHW and channels-last run natively).
/// Training needs at least two values per channel, or an empty batch (N = 0), which moves no statistics. With
/// a group, these are the values of all ranks.
/// Train mode normalizes with the statistics of the batch and moves the running statistics towards them; eval
/// mode normalizes with the running statistics.
///
/// A layer may write over its input if the layer that made x does not need x in backward: a convolution, a
/// linear layer, an addition, max pooling. Normalizations usually follow one of these. Use in_place(false)
///  - for a leaf that requires grad: libtorch refuses to overwrite one;
///  - for a producer that reads its own output in backward (sigmoid, exp, another in-place layer): libtorch
///    reports in backward a variable "modified by an inplace operation";
///  - for an input that another layer reads afterwards. Under NoGradGuard nothing reports that this reader
///    finds z in the place of x.
/// Throws Error(kUsage) at construction if the activation does not fit the strategy (check_pair).
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018.
class BatchNormActImpl : public Cloneable<BatchNormActImpl> {
 public:
  /* implicit */ BatchNormActImpl(const BatchNormActOptions& options);
  BatchNormActImpl(int64_t channels, const NormOptions& norm)
      : BatchNormActImpl(BatchNormActOptions(channels, norm)) {}

  /// Returns act(bn(x)), in the shape of x. Prefer forward_into if a convolution reads the result.
  at::Tensor forward(at::Tensor x);

  /// Returns conv(act(bn(x))). `checkpoint`, `checkpoint_normalized` and `store_y` run it as one node of the
  /// graph, so that the convolution does not save its input. `conv` may be an nn::Conv2d or a
  /// torch::nn::Conv2d.
  at::Tensor forward_into(at::Tensor x, torch::nn::Conv2dImpl& conv);
  template <class Convolution>
  at::Tensor forward_into(at::Tensor x, torch::nn::ModuleHolder<Convolution>& conv) {
    return forward_into(std::move(x), *conv);
  }

  /// Ends a residual block: returns act(bn(x) + act'(residual)), written over x, where act' is the activation
  /// that the producer of the residual deferred. The result is the sum without act if `result_activation` is
  /// deferred. std::nullopt: if blocks of this strategy and activation defer theirs (defers_activation).
  /// Under every strategy but `standard`, backward reads the result and the residual, which their other
  /// readers save in any case; nothing is saved for x.
  ///
  /// A network gives the `result_activation` for which it built the readers of the result, so that a later
  /// change of the strategy changes no result. If the new strategy would defer the activation and the readers
  /// do not apply it, the sum is saved beside the result. Throws Error(kUsage) if the activation is no longer
  /// the one that was deferred, and for a strategy that the activation does not fit.
  at::Tensor forward_residual(at::Tensor x, const at::Tensor& residual,
                              const DeferredActivation& residual_activation = {},
                              const std::optional<DeferredActivation>& result_activation = std::nullopt);

  /// Sets weight 1, bias 0, running mean 0, running variance 1, and the count of batches 0.
  void reset_parameters();
  void reset_running_stats();

  /// Return the tensors, and the options of this forward pass, for operators that normalize by themselves
  /// (ops::dense_block, ops::concat_abn_conv). begin_operator() counts the batch, as forward() does.
  ops::NormalizationTensors tensors() const;
  /// Requires fits_operator(): the strategy is not `standard`, and the normalization was not folded away.
  ops::AbnOptions begin_operator();
  bool fits_operator() const { return !is_activation_only() && options.strategy() != Strategy::kStandard; }

  /// Returns whether the layer applies its activation only: after keep_activation_only (nn/fold.h), in eval
  /// mode.
  bool is_activation_only() const { return activation_only && !is_training(); }

  /// Returns whether this forward pass takes statistics over options.group(). Then an empty batch runs the
  /// operators that the other ranks run.
  bool shares_statistics() const { return !options.group().empty() && is_training(); }

  void pretty_print(std::ostream& stream) const override;

  BatchNormActOptions options;
  bool activation_only = false;          ///< set by keep_activation_only
  at::Tensor weight, bias;               ///< (C); undefined without affine
  at::Tensor running_mean, running_var;  ///< (C); undefined without track_running_stats
  at::Tensor num_batches_tracked;        ///< i64 scalar: training forwards so far

 protected:
  void rebind(Clones& clones) override;

 private:
  ops::AbnOptions begin_forward();
  bool is_empty(const at::Tensor& x) const;
  at::Tensor forward_standard(const at::Tensor& x, const ops::AbnOptions& layer);
  at::Tensor forward_fused(at::Tensor x, ops::AbnOptions layer,
                           const std::optional<at::Tensor>& residual = std::nullopt) const;
  at::Tensor activate_only(at::Tensor x) const;
  ops::Saved saved() const;
};

TORCH_MODULE(BatchNormAct);

/// Short names.
using NormImpl = BatchNormActImpl;
using Norm = BatchNormAct;

}  // namespace palimpsest::nn
