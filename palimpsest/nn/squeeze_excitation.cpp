#include "palimpsest/nn/squeeze_excitation.h"

#include "palimpsest/nn/conv2d/functional.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>

namespace palimpsest::nn {
namespace {

Conv2d fully_connected(int64_t in, int64_t out) {
  return Conv2d(torch::nn::Conv2dOptions(in, out, 1), ConvolutionBackend::kLibtorch);
}

}  // namespace

SqueezeExcitationImpl::SqueezeExcitationImpl(const SqueezeExcitationOptions& o)
    : options(o),
      fc1(register_module("fc1", fully_connected(o.channels, o.squeezed))),
      fc2(register_module("fc2", fully_connected(o.squeezed, o.channels))) {}

at::Tensor SqueezeExcitationImpl::forward(const at::Tensor& x) {
  at::Tensor gate = fc1->forward(at::adaptive_avg_pool2d(x, {1, 1}));
  gate = options.squeeze_activation == ops::SqueezeActivation::kSiLU ? at::silu(gate) : at::relu(gate);
  gate = fc2->forward(gate);
  gate = options.gate_activation == ops::GateActivation::kSigmoid ? at::sigmoid(gate) : at::hardsigmoid(gate);
  return x * gate;
}

at::Tensor SqueezeExcitationImpl::forward_into(const at::Tensor& t, const DeferredActivation& input,
                                               Conv2dImpl& conv) {
  return ops::squeeze_excite_conv(
      t,
      {fc1->weight, fc1->bias, fc2->weight, fc2->bias, options.squeeze_activation, options.gate_activation},
      conv.weight, conv2d_detail::bias(conv), conv2d_detail::geometry(conv),
      input.is_deferred ? input.activation : Activation::kIdentity, input.activation_param);
}

void SqueezeExcitationImpl::pretty_print(std::ostream& stream) const {
  stream << "palimpsest::nn::SqueezeExcitation(" << options.channels << ", squeezed=" << options.squeezed
         << ")";
}

}  // namespace palimpsest::nn
