#pragma once

#include "palimpsest/nn/norm.h"

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

/// act(t).
at::Tensor read(const at::Tensor& t, const Pending& pending);

/// conv(act(t)), which keeps t and not act(t); without a pending activation nn::convolve(conv, t, strategy).
at::Tensor read(const at::Tensor& t, const Pending& pending, torch::nn::Conv2d& conv, Strategy strategy);

/// The end of a post-activation residual block: act(norm(h) + act'(shortcut)), over h, where act' is what the
/// shortcut's producer left; or, if passes_sum_on(options), the sum itself. Backward reads the result and the
/// shortcut, which their other readers keep anyway: h costs nothing. `norm` has no activation of its own.
at::Tensor end_block(Norm& norm, at::Tensor h, const at::Tensor& shortcut, const Pending& pending,
                     const NormOptions& options);

}  // namespace palimpsest::nn
