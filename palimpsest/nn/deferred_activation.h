#pragma once

#include "palimpsest/nn/norm_options.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::nn {

class Conv2dImpl;

/// Returns whether the residual blocks of a network pass their sum on and leave the activation to the next
/// readers. They do so if the strategy cannot recover the sum from the activated sum: then the sum is the one
/// tensor that backward needs. Blocks of strategy `standard` never do.
bool defers_activation(const NormOptions& norm);

/// An activation that the producer of a tensor t left to the readers of t. The readers save t instead of
/// act(t), so t is saved once for all of them.
struct DeferredActivation {
  bool is_deferred = false;
  Activation activation = Activation::kIdentity;
  double activation_param = 0;

  /// Returns the activation that residual blocks with these options leave to the readers of their result.
  static DeferredActivation of_blocks(const NormOptions& norm);

  /// Returns act(t), or t itself if nothing is deferred.
  at::Tensor apply(const at::Tensor& t) const;
  /// Returns conv(act(t)) and saves t, not act(t). Returns conv(t) if nothing is deferred.
  at::Tensor forward_into(const at::Tensor& t, Conv2dImpl& conv) const;
};

}  // namespace palimpsest::nn
