#include "palimpsest/nn/fold.h"

#include "palimpsest/base/error.h"

#include <fmt/format.h>

namespace palimpsest::nn {
namespace {

/// register_parameter refuses a name that is there, though it be undefined; there is no public way to fill
/// one in.
struct Parameters : torch::nn::Module {
  static at::Tensor& entry(torch::nn::Module& module, const std::string& name) {
    return (module.*&Parameters::parameters_)[name];
  }
};

}  // namespace

ChannelAffine ChannelAffine::channels(int64_t first, int64_t count) const {
  return {scale.narrow(0, first, count), shift.defined() ? shift.narrow(0, first, count) : at::Tensor()};
}

template <class Derived>
ChannelAffine inference_affine(const BatchNormState<Derived>& norm) {
  if (norm.is_training() || !norm.running_mean.defined())
    throw Error(
        ErrorKind::kUsage,
        norm.running_mean.defined()
            ? "a batch normalization is folded in eval mode, got one in training mode: call eval() first"
            : "a batch normalization is folded by its running statistics, got one without them");
  const torch::NoGradGuard no_grad;
  ChannelAffine affine;
  affine.scale = (norm.running_var.to(at::kDouble) + norm.options.eps()).rsqrt_();
  if (norm.weight.defined()) affine.scale.mul_(norm.weight);
  affine.shift = -norm.running_mean.to(at::kDouble) * affine.scale;
  if (norm.bias.defined()) affine.shift.add_(norm.bias);
  return affine;
}

void scale_convolution(torch::nn::Conv2dImpl& conv, const ChannelAffine& affine) {
  const int64_t channels = conv.weight.size(0);
  if (affine.scale.numel() != channels)
    throw Error(ErrorKind::kUsage,
                fmt::format("a batch normalization is folded into a convolution with as many "
                            "output channels, got {} channels and {} output channels",
                            affine.scale.numel(), channels));
  const torch::NoGradGuard no_grad;
  conv.weight.copy_(conv.weight.to(at::kDouble) * affine.scale.view({channels, 1, 1, 1}));
  auto bias = conv.bias.defined() ? conv.bias.to(at::kDouble) * affine.scale : at::zeros_like(affine.scale);
  if (affine.shift.defined()) bias.add_(affine.shift);
  if (conv.bias.defined()) {
    conv.bias.copy_(bias);
  } else if (affine.shift.defined()) {
    conv.bias = bias.to(conv.weight.options()).set_requires_grad(conv.weight.requires_grad());
    Parameters::entry(conv, "bias") = conv.bias;
    conv.options.bias(true);
  }
}

template <class Derived>
void keep_activation_only(BatchNormState<Derived>& norm) {
  const torch::NoGradGuard no_grad;
  norm.weight = norm.bias = at::Tensor();
  Parameters::entry(norm, "weight") = Parameters::entry(norm, "bias") = at::Tensor();
  norm.options.affine(false).eps(0);
  norm.running_mean.zero_();
  norm.running_var.fill_(1);
  norm.activation_only = true;
}

template ChannelAffine inference_affine(const BatchNormState<NormImpl>&);
template ChannelAffine inference_affine(const BatchNormState<InPlaceABNImpl>&);
template void keep_activation_only(BatchNormState<NormImpl>&);
template void keep_activation_only(BatchNormState<InPlaceABNImpl>&);

}  // namespace palimpsest::nn
