#include "palimpsest/nn/norm.h"

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
      strategy(options.strategy) {}

at::Tensor NormImpl::forward(at::Tensor x) {
  const ops::AbnOptions layer = begin_forward();
  if (strategy == Strategy::kStandard) {
    // The functional form rather than at::batch_norm: it refuses one value per channel, as the fused layer
    // does.
    namespace F = torch::nn::functional;
    // Recomputed, the batch must not move the running statistics again. Copies and not undefined tensors:
    // autograd saves the two, and a second run that saved fewer tensors would not fit the first.
    const bool again = layer.training && running_mean.defined() && ops::recomputing();
    auto y = F::batch_norm(x, again ? running_mean.clone() : running_mean,
                           again ? running_var.clone() : running_var,
                           F::BatchNormFuncOptions()
                               .weight(weight)
                               .bias(bias)
                               .training(layer.training)
                               .momentum(layer.momentum)
                               .eps(layer.eps));
    return activate_(std::move(y), layer.activation, layer.activation_param);
  }
  return forward_fused(std::move(x), layer);
}

void NormImpl::pretty_print(std::ostream& stream) const {
  stream << "palimpsest::nn::Norm(" << options.channels() << ", strategy=" << to_string(strategy)
         << ", activation=" << to_string(options.activation());
  if (options.activation() != Activation::kIdentity) stream << "[" << options.activation_param() << "]";
  stream << ")";
}

}  // namespace palimpsest::nn
