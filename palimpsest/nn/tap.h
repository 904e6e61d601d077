#pragma once

#include "palimpsest/nn/norm.h"
#include "palimpsest/ops/abn_conv.h"

namespace palimpsest::nn {

/// An activation that the producer of a tensor left to its readers. A residual block whose activation cannot
/// be inverted passes its sum t on instead of act(t): then t, which backward needs, is the one tensor that is
/// kept, and every reader applies the activation while it reads.
struct Pending {
  bool pending = false;
  Activation activation = Activation::kIdentity;
  double activation_param = 0;
};

/// Whether residual blocks of these options pass their sum on.
bool passes_sum_on(const NormOptions& options);

/// The convolution's geometry as the operators take it. Throws Error(kUsage) for a padding mode other than
/// zeros or padding by name, which they do not have.
ops::ConvolutionOptions convolution_options(const torch::nn::Conv2dImpl& conv);

/// act(t).
at::Tensor read(const at::Tensor& t, const Pending& pending);

/// conv(act(t)), which keeps t and not act(t).
at::Tensor read(const at::Tensor& t, const Pending& pending, torch::nn::Conv2d& conv);

/// The end of a post-activation residual block: act(norm(h) + act'(shortcut)), over h, where act' is what the
/// shortcut's producer left; or, if passes_sum_on(options), the sum itself. Backward reads the result and the
/// shortcut, which their other readers keep anyway: h costs nothing. `norm` has no activation of its own.
at::Tensor end_block(Norm& norm, at::Tensor h, const at::Tensor& shortcut, const Pending& pending,
                     const NormOptions& options);

}  // namespace palimpsest::nn
