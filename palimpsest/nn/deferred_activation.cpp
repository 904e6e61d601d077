#include "palimpsest/nn/deferred_activation.h"

#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/conv2d/functional.h"
#include "palimpsest/ops/abn_conv.h"

namespace palimpsest::nn {

bool defers_activation(const NormOptions& norm) {
  const bool recovered = norm.strategy == Strategy::kInplaceBit ? fits(norm.strategy, norm.activation)
                                                                : kernels::is_invertible(norm.activation);
  return norm.strategy != Strategy::kStandard && !recovered;
}

DeferredActivation DeferredActivation::of_blocks(const NormOptions& norm) {
  return {defers_activation(norm), norm.activation, norm.activation_param};
}

at::Tensor DeferredActivation::apply(const at::Tensor& t) const {
  return is_deferred ? activate(t, activation, activation_param) : t;
}

at::Tensor DeferredActivation::forward_into(const at::Tensor& t, Conv2dImpl& conv) const {
  if (!is_deferred) return conv.forward(t);
  return ops::activate_conv(t, conv.weight, conv2d_detail::bias(conv), conv2d_detail::geometry(conv),
                            activation, activation_param);
}

}  // namespace palimpsest::nn
