#include "palimpsest/nn/norm.h"

#include "palimpsest/nn/convolve.h"

#include <torch/nn/functional/batchnorm.h>

namespace palimpsest::nn {

NormOptions NormOptions::identity() const {
  NormOptions copy = *this;
  copy.activation = Activation::kIdentity;
  return copy;
}

NormOptions NormOptions::out_of_place() const {
  NormOptions copy = *this;
  copy.in_place = false;
  return copy;
}

NormImpl::NormImpl(int64_t channels, const NormOptions& options)
    : BatchNormState(InPlaceABNOptions(channels)
                         .activation(options.activation)
                         .activation_param(options.activation_param)
                         .in_place(options.in_place)),
      strategy(options.strategy) {
  check_pair(strategy, options.activation);
}

at::Tensor NormImpl::forward_standard(const at::Tensor& x, const ops::AbnOptions& layer) {
  // The functional form rather than at::batch_norm: it refuses one value per channel, as the fused layer
  // does.
  namespace F = torch::nn::functional;
  // Recomputed, the batch must not move the running statistics again. Copies and not undefined tensors:
  // autograd saves the two, and a second run that saved fewer tensors would not fit the first.
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

at::Tensor NormImpl::forward(at::Tensor x) {
  if (only_activation()) return activate_only(std::move(x));
  ops::AbnOptions layer = begin_forward();
  if (strategy == Strategy::kStandard)
    return activate_(forward_standard(x, layer), layer.activation, layer.activation_param);
  layer.saved = saved_by(layer.activation);
  return forward_fused(std::move(x), layer);
}

ops::Saved NormImpl::saved_by(Activation activation) const {
  // Without an activation z is y: saving anything else gains nothing.
  return activation == Activation::kIdentity ? ops::Saved::kOutput : saved_by_strategy(strategy, activation);
}

ops::AbnOptions NormImpl::begin_operator() {
  ops::AbnOptions layer = begin_forward();
  layer.saved = saved_by(layer.activation);
  return layer;
}

at::Tensor NormImpl::forward_into(at::Tensor x, torch::nn::Conv2d& conv) {
  const bool fused = strategy == Strategy::kCheckpoint || strategy == Strategy::kCheckpointNormalized ||
                     strategy == Strategy::kStoreY;
  if (!fused || only_activation()) return convolve(conv, forward(std::move(x)), strategy);
  ops::AbnOptions layer = begin_forward();
  layer.saved = saved_by_strategy(strategy, layer.activation);
  const ops::NormalizationTensors norm = tensors();
  const auto geometry = convolution_options(*conv);
  return options.in_place()
             ? ops::abn_conv_(std::move(x), norm, conv->weight, bias_of(*conv), geometry, layer)
             : ops::abn_conv(x, norm, conv->weight, bias_of(*conv), geometry, layer);
}

at::Tensor NormImpl::forward_sum(at::Tensor x, const at::Tensor& residual, bool relu_residual,
                                 Activation activation, double activation_param) {
  if (only_activation()) {
    const at::Tensor added = relu_residual ? at::relu(residual) : residual;
    return activate_(options.in_place() ? x.add_(added) : x + added, activation, activation_param);
  }
  ops::AbnOptions layer = begin_forward();
  if (strategy == Strategy::kStandard)
    return activate_(forward_standard(x, layer).add_(residual), activation, activation_param);
  layer.activation = activation;
  layer.activation_param = activation_param;
  layer.relu_residual = relu_residual;
  // The shortcut is kept by its other readers: z is enough whatever the strategy keeps elsewhere.
  const bool in_place = strategy == Strategy::kInplace1 || strategy == Strategy::kInplace1Bit;
  layer.saved = in_place ? saved_by_strategy(strategy, activation) : ops::Saved::kOutput;
  return forward_fused(std::move(x), layer, residual);
}

void NormImpl::pretty_print(std::ostream& stream) const {
  stream << "palimpsest::nn::Norm(" << options.channels() << ", strategy=" << to_string(strategy)
         << ", activation=" << to_string(options.activation());
  if (options.activation() != Activation::kIdentity) stream << "[" << options.activation_param() << "]";
  stream << ")";
}

}  // namespace palimpsest::nn
