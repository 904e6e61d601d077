#pragma once

#include "palimpsest/nn/batch_norm_act.h"

#include <torch/nn/pimpl.h>

#include <ostream>

namespace palimpsest::nn {

/// The options of BatchNormAct, e.g. InPlaceABNOptions(64).activation(Activation::kELU).activation_param(1);
/// the strategy stays inplace_2.
using InPlaceABNOptions = BatchNormActOptions;

/// Batch normalization + activation that saves nothing but its output for backward, written over its input:
/// BatchNormAct with strategy inplace_2. The activation must be invertible (leaky ReLU, ELU, identity,
/// sigmoid, tanh, softplus); for any other activation take BatchNormAct with strategy store_y.
class InPlaceABNImpl : public Cloneable<InPlaceABNImpl, BatchNormActImpl> {
 public:
  /* implicit */ InPlaceABNImpl(const InPlaceABNOptions& options);
  void pretty_print(std::ostream& stream) const override;

 private:
  // Cloneable declares it anew, without a body.  NOLINTNEXTLINE(bugprone-parent-virtual-call)
  void rebind(Clones& clones) override { BatchNormActImpl::rebind(clones); }
};

TORCH_MODULE(InPlaceABN);

}  // namespace palimpsest::nn
