#include "palimpsest/nn/batch_norm_act.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/recomputing.h"
#include "palimpsest/nn/common/libtorch_layer.h"
#include "palimpsest/nn/conv2d/functional.h"
#include "palimpsest/ops/abn_conv.h"

#include <torch/nn/functional/batchnorm.h>

namespace palimpsest::nn {
namespace {

/// The readers of a residual block's result apply the activation for which they were built.
void check_still_deferred(const DeferredActivation& deferred, Activation activation) {
  if (deferred.activation == activation) return;
  throw Error(ErrorKind::kUsage,
              "[BatchNormAct] the end of a residual block whose readers apply its activation must keep '" +
                  to_string(deferred.activation) + "', got '" + to_string(activation) +
                  "' after construction; build the network with the new activation");
}

}  // namespace

BatchNormActImpl::BatchNormActImpl(const BatchNormActOptions& options_) : options(options_) {
  check_activation_param(options.activation(), options.activation_param());
  check_pair(options.strategy(), options.activation());
  const int64_t channels = options.channels();
  const bool affine = options.affine(), track = options.track_running_stats();
  const auto vector = [&](bool defined) { return defined ? torch::empty({channels}) : at::Tensor(); };
  weight = register_parameter("weight", vector(affine), affine);
  bias = register_parameter("bias", vector(affine), affine);
  running_mean = register_buffer("running_mean", vector(track));
  running_var = register_buffer("running_var", vector(track));
  num_batches_tracked =
      register_buffer("num_batches_tracked", track ? torch::empty({}, torch::kInt64) : at::Tensor());
  reset_parameters();
}

void BatchNormActImpl::reset_parameters() {
  const at::NoGradGuard no_grad;
  if (weight.defined()) weight.fill_(1);
  if (bias.defined()) bias.zero_();
  reset_running_stats();
}

void BatchNormActImpl::reset_running_stats() {
  if (!running_mean.defined()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void BatchNormActImpl::rebind(Clones& clones) {
  clones(weight, bias, running_mean, running_var, num_batches_tracked);
}

ops::NormalizationTensors BatchNormActImpl::tensors() const {
  return {or_none(weight), or_none(bias), or_none(running_mean), or_none(running_var)};
}

ops::AbnOptions BatchNormActImpl::begin_forward() {
  ops::AbnOptions layer;
  layer.training = is_training() || !running_mean.defined();
  layer.momentum = options.momentum().value_or(0);
  layer.eps = options.eps();
  layer.activation = options.activation();
  layer.activation_param = options.activation_param();
  if (is_training()) layer.group = options.group();
  // A recomputed segment sees the same batch again.
  if (is_training() && num_batches_tracked.defined() && !recomputing()) {
    // module->to(kBFloat16) casts this buffer, too, and bf16 would count to 256 only.
    if (num_batches_tracked.scalar_type() != at::kLong)
      num_batches_tracked.set_data(num_batches_tracked.to(at::kLong));
    num_batches_tracked.add_(1);
    if (!options.momentum()) layer.momentum = 1.0 / static_cast<double>(num_batches_tracked.item<int64_t>());
  }
  return layer;
}

ops::AbnOptions BatchNormActImpl::begin_operator() {
  ops::AbnOptions layer = begin_forward();
  layer.saved = saved();
  return layer;
}

ops::Saved BatchNormActImpl::saved() const {
  check_pair(options.strategy(), options.activation());
  // z is y if there is no activation: saving another tensor gains nothing.
  return options.activation() == Activation::kIdentity
             ? ops::Saved::kOutput
             : saved_by_strategy(options.strategy(), options.activation());
}

bool BatchNormActImpl::is_empty(const at::Tensor& x) const {
  return x.numel() == 0 && !shares_statistics();
}

at::Tensor BatchNormActImpl::forward_standard(const at::Tensor& x, const ops::AbnOptions& layer) {
  if (!layer.group.empty()) {
    ops::AbnOptions alone = layer;
    alone.activation = Activation::kIdentity;
    alone.saved = ops::Saved::kInput;
    return ops::abn(x, tensors(), alone);
  }
  // The functional form, unlike at::batch_norm, refuses one value per channel, as the fused layer does.
  namespace F = torch::nn::functional;
  // A recomputed batch must not move the running statistics again. They are copies, not undefined tensors:
  // autograd saves both, and a second run that saved fewer tensors would not match the first.
  const bool again = layer.training && running_mean.defined() && recomputing();
  return F::batch_norm(x, again ? running_mean.clone() : running_mean,
                       again ? running_var.clone() : running_var,
                       F::BatchNormFuncOptions()
                           .weight(weight)
                           .bias(bias)
                           .training(layer.training)
                           .momentum(layer.momentum)
                           .eps(layer.eps));
}

at::Tensor BatchNormActImpl::forward_fused(at::Tensor x, ops::AbnOptions layer,
                                           const std::optional<at::Tensor>& residual) const {
  // abn_ then writes y over x in place of saving it in a new tensor.
  layer.saved = ops::saved_for(layer, x.scalar_type());
  const ops::NormalizationTensors norm = tensors();
  return options.in_place() && layer.saved != ops::Saved::kInput
             ? ops::abn_(std::move(x), norm, layer, residual)
             : ops::abn(x, norm, layer, residual);
}

at::Tensor BatchNormActImpl::activate_only(at::Tensor x) const {
  if (options.in_place()) return activate_(std::move(x), options.activation(), options.activation_param());
  if (options.activation() == Activation::kIdentity) return x.clone();  // a reader may write over the result
  return activate(x, options.activation(), options.activation_param());
}

at::Tensor BatchNormActImpl::forward(at::Tensor x) {
  if (is_activation_only()) return activate_only(std::move(x));
  ops::AbnOptions layer = begin_forward();
  // libtorch's layer handles an empty batch: empty results, zero gradients, no statistics.
  if (options.strategy() == Strategy::kStandard || is_empty(x))
    return activate_(forward_standard(x, layer), layer.activation, layer.activation_param);
  layer.saved = saved();
  return forward_fused(std::move(x), layer);
}

at::Tensor BatchNormActImpl::forward_into(at::Tensor x, torch::nn::Conv2dImpl& conv) {
  const Strategy strategy = options.strategy();
  const bool is_fused = strategy == Strategy::kCheckpoint || strategy == Strategy::kCheckpointNormalized ||
                        strategy == Strategy::kStoreY;
  if (!is_fused || is_activation_only() || is_empty(x)) {
    auto* ours = dynamic_cast<Conv2dImpl*>(&conv);
    at::Tensor z = forward(std::move(x));
    return ours ? ours->forward(z) : conv2d_detail::forward(conv, z, convolution_backend(strategy));
  }
  ops::AbnOptions layer = begin_forward();
  layer.saved = saved_by_strategy(strategy, layer.activation);
  const ops::NormalizationTensors norm = tensors();
  const auto geometry = conv2d_detail::geometry(conv);
  const auto conv_bias = conv2d_detail::bias(conv);
  return options.in_place() ? ops::abn_conv_(std::move(x), norm, conv.weight, conv_bias, geometry, layer)
                            : ops::abn_conv(x, norm, conv.weight, conv_bias, geometry, layer);
}

at::Tensor BatchNormActImpl::forward_residual(at::Tensor x, const at::Tensor& residual,
                                              const DeferredActivation& residual_activation,
                                              const std::optional<DeferredActivation>& result_activation) {
  const Strategy strategy = options.strategy();
  check_pair(strategy, options.activation());
  const auto current =
      DeferredActivation::of_blocks({strategy, options.activation(), options.activation_param()});
  const bool defers = result_activation.value_or(current).is_deferred;
  if (defers && result_activation) check_still_deferred(*result_activation, options.activation());
  const Activation activation = defers ? Activation::kIdentity : options.activation();
  const double param = options.activation_param();
  const auto activated_residual = [&] { return residual_activation.apply(residual); };
  if (is_activation_only()) {
    const at::Tensor r = activated_residual();
    return activate_(options.in_place() ? x.add_(r) : x + r, activation, param);
  }
  ops::AbnOptions layer = begin_forward();
  if (strategy == Strategy::kStandard || is_empty(x))
    return activate_(forward_standard(x, layer).add_(activated_residual()), activation, param);
  // The sum cannot be recovered from the activated sum: the activation is a layer of its own.
  const bool activates_aside = !defers && current.is_deferred;
  layer.activation = activates_aside ? Activation::kIdentity : activation;
  layer.activation_param = param;
  // The operator applies a deferred ReLU while it reads the residual.
  layer.relu_residual =
      defers && residual_activation.is_deferred && residual_activation.activation == Activation::kReLU;
  // The other readers of the residual save it, so saving z is enough whatever the strategy saves elsewhere.
  const bool is_in_place = strategy == Strategy::kInplace1 || strategy == Strategy::kInplaceBit;
  layer.saved = is_in_place ? saved_by_strategy(strategy, layer.activation) : ops::Saved::kOutput;
  at::Tensor sum = forward_fused(std::move(x), layer, layer.relu_residual ? residual : activated_residual());
  return activates_aside ? activate(sum, activation, param) : sum;
}

void BatchNormActImpl::pretty_print(std::ostream& stream) const {
  stream << "palimpsest::nn::BatchNormAct(" << options.channels()
         << ", strategy=" << to_string(options.strategy())
         << ", activation=" << to_string(options.activation());
  if (options.activation() != Activation::kIdentity) stream << "[" << options.activation_param() << "]";
  stream << ")";
}

}  // namespace palimpsest::nn
