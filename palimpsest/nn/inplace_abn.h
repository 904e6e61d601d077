#pragma once

#include "palimpsest/nn/batch_norm_state.h"
#include "palimpsest/nn/strategy.h"

#include <torch/nn/pimpl.h>

#include <ostream>

namespace palimpsest::nn {

/// Batch normalization + activation that keeps nothing but its output for backward:
///   y = weight * (x - mean) / sqrt(var + eps) + bias,   z = act(y),   z written over x
/// Gradients are those of BatchNorm2d followed by the activation. x: (N, C, ...) of rank 2 to 5, f32, f64,
/// f16 or bf16, any strides (NCHW and channels-last without a copy). Training needs at least two values per
/// channel. Train mode normalizes with the batch's statistics and updates the running ones; eval mode uses
/// the running ones.
///
/// Writing over the input is right where the layer that made x does not need it in backward (a convolution, a
/// linear layer, an addition, max pooling), which is where normalizations stand. Mind three cases:
///  - a leaf that requires grad cannot be overwritten: libtorch says so. Use in_place(false);
///  - a producer that reads its own output in backward (sigmoid, exp, another in-place layer): libtorch
///  reports, at
///    backward, a variable "modified by an inplace operation". Use in_place(false);
///  - under NoGradGuard or in eval mode the input is overwritten, too: whoever still reads x (another branch,
///  the
///    caller) finds z there, and no one complains. Use in_place(false) for an input that has a second reader.
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018.
class InPlaceABNImpl : public BatchNormState<InPlaceABNImpl> {
 public:
  /* implicit */ InPlaceABNImpl(const InPlaceABNOptions& options) : BatchNormState(options) {
    check_pair(Strategy::kInplace2, options.activation());
  }

  at::Tensor forward(at::Tensor x);
  void pretty_print(std::ostream& stream) const override;
};

TORCH_MODULE(InPlaceABN);

}  // namespace palimpsest::nn
