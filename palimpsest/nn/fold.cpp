#include "palimpsest/nn/fold.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/common/module_access.h"

#include <fmt/format.h>

namespace palimpsest::nn {

ChannelAffine ChannelAffine::channels(int64_t first, int64_t count) const {
  return {scale.narrow(0, first, count), shift.defined() ? shift.narrow(0, first, count) : at::Tensor()};
}

ChannelAffine inference_affine(const BatchNormActImpl& norm) {
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
    ModuleAccess::parameters(conv)["bias"] = conv.bias;
    conv.options.bias(true);
  }
}

void keep_activation_only(BatchNormActImpl& norm) {
  const torch::NoGradGuard no_grad;
  norm.weight = norm.bias = at::Tensor();
  ModuleAccess::parameters(norm)["weight"] = ModuleAccess::parameters(norm)["bias"] = at::Tensor();
  norm.options.affine(false).eps(0);
  norm.running_mean.zero_();
  norm.running_var.fill_(1);
  norm.activation_only = true;
}

void fold_batch_norm(torch::nn::Conv2dImpl& conv, BatchNormActImpl& norm) {
  scale_convolution(conv, inference_affine(norm));
  keep_activation_only(norm);
}

}  // namespace palimpsest::nn
