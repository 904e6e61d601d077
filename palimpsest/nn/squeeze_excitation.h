#pragma once

#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/deferred_activation.h"
#include "palimpsest/ops/squeeze_excite_conv.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <ostream>

namespace palimpsest::nn {

/// The two activations of a SqueezeExcitation.
struct SqueezeExcitationOptions {
  int64_t channels = 0;  ///< of the input; no default
  int64_t squeezed = 0;  ///< values between the two layers; no default
  ops::SqueezeActivation squeeze_activation = ops::SqueezeActivation::kReLU;
  ops::GateActivation gate_activation = ops::GateActivation::kSigmoid;
};

/// Squeeze and excitation: one gate per image and channel, from the means of the image's channels,
///   gate = gate_act(fc2(squeeze_act(fc1(mean over h, w of x)))),   result = x * gate.
/// Parameters have torchvision's names: fc1 and fc2 are 1x1 convolutions with a bias.
///
/// x: (N, C, H, W). forward() runs libtorch's layers, which save x, and the reader of the result saves the
/// product. forward_into() saves one tensor of this size: the input that it was given.
/// Source: Hu, Shen, Sun, "Squeeze-and-Excitation Networks", CVPR 2018.
class SqueezeExcitationImpl : public Cloneable<SqueezeExcitationImpl> {
 public:
  /* implicit */ SqueezeExcitationImpl(const SqueezeExcitationOptions& options);

  /// Returns x * gate.
  at::Tensor forward(const at::Tensor& x);
  /// Returns conv(x * gate), where x = act(t) if the producer of t deferred its activation, else t. Saves t.
  /// Runs ops::squeeze_excite_conv. Throws Error(kUsage) for a convolution that pads with other values than 0.
  at::Tensor forward_into(const at::Tensor& t, const DeferredActivation& input, Conv2dImpl& conv);

  void pretty_print(std::ostream& stream) const override;

  SqueezeExcitationOptions options;  ///< a later change of the activations takes effect at the next forward
  Conv2d fc1, fc2;

 private:
  void rebind(Clones& clones) override { clones(fc1, fc2); }
};

TORCH_MODULE(SqueezeExcitation);

}  // namespace palimpsest::nn
