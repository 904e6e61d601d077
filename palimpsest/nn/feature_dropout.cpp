#include "palimpsest/nn/feature_dropout.h"

#include "palimpsest/nn/conv2d/functional.h"
#include "palimpsest/ops/squeeze_excite_conv.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/feature_dropout.h>

namespace palimpsest::nn {

at::Tensor feature_dropout_into(const at::Tensor& t, const DeferredActivation& input, Conv2dImpl& conv,
                                double probability) {
  if (conv.backend == ConvolutionBackend::kLibtorchLayer || t.numel() == 0)
    return conv.forward(at::feature_dropout(input.apply(t), probability, /*train=*/true));
  const auto type = t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor keep = at::empty({t.size(0), t.size(1)}, t.options().dtype(type))
                              .bernoulli_(1 - probability)
                              .div_(1 - probability);
  return ops::gated_conv(t, keep, conv.weight, conv2d_detail::bias(conv), conv2d_detail::geometry(conv),
                         input.is_deferred ? input.activation : Activation::kIdentity,
                         input.activation_param);
}

}  // namespace palimpsest::nn
