#include "palimpsest/nn/tap.h"

#include "palimpsest/nn/convolve.h"
#include "palimpsest/ops/abn_conv.h"

namespace palimpsest::nn {

bool passes_sum_on(const NormOptions& options) {
  const bool recovered = options.strategy == Strategy::kInplace1Bit
                             ? fits(options.strategy, options.activation)
                             : kernels::is_invertible(options.activation);
  return options.strategy != Strategy::kStandard && !recovered;
}

at::Tensor read(const at::Tensor& t, const Pending& pending) {
  return pending.pending ? activate(t, pending.activation, pending.activation_param) : t;
}

at::Tensor read(const at::Tensor& t, const Pending& pending, torch::nn::Conv2d& conv, Strategy strategy) {
  if (!pending.pending) return convolve(conv, t, strategy);
  return ops::activate_conv(t, conv->weight, bias_of(*conv), convolution_options(*conv), pending.activation,
                            pending.activation_param);
}

at::Tensor end_block(Norm& norm, at::Tensor h, const at::Tensor& shortcut, const Pending& pending,
                     const NormOptions& options) {
  if (!passes_sum_on(options))
    return norm->forward_sum(std::move(h), read(shortcut, pending), false, options.activation,
                             options.activation_param);
  const bool relu = pending.pending && pending.activation == Activation::kReLU;
  return norm->forward_sum(std::move(h), relu ? shortcut : read(shortcut, pending), relu,
                           Activation::kIdentity, 0);
}

}  // namespace palimpsest::nn
