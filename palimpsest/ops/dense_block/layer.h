#pragma once

#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/dense_block.h"
#include "palimpsest/ops/dense_block/device.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

/// One layer of ops::dense_block, for those who differentiate by themselves: no autograd, no autocast.
namespace palimpsest::ops {

/// What a normalization over a tensor of its own leaves for backward.
struct DenseNormKept {
  at::Tensor kept, side, mean, inv_std, branch;
  Saved keep = Saved::kOutput;  ///< what `kept` is: forward's choice
};

/// What a layer leaves for backward, beside its parameters and its slot.
struct DenseLayerKept {
  DenseNormKept bottleneck, features;  ///< `features`: norm2 of post-activation order
  /// What makes dropout's factors again: the generator's state before it drew them, or which values stay,
  /// one byte each (DenseDeviceKernels::replays_dropout).
  at::Tensor dropout;
};
inline constexpr int kDenseLayerTensors = 11;

/// The gradients of a layer's parameters; undefined where not needed.
struct DenseLayerGradients {
  at::Tensor weight1, bias1, kernel1, weight2, bias2, kernel2;
};

/// A layer that reads the first `channels` of the buffer. With a `precision`, whose storage is the buffer's
/// type, kernels are rounded to it in each pass; else they are of the buffer's type.
class DenseLayerPass {
 public:
  DenseLayerPass(const DenseLayer& layer, const DenseBlockOptions& options, int64_t channels,
                 const std::optional<ProductPrecision>& precision)
      : l_(layer), options_(options), channels_(channels), precision_(precision) {}

  int64_t growth() const { return l_.kernel2.size(0); }

  /// Writes the layer's slot of the buffer (with its statistics) and moves the running statistics.
  DenseLayerKept forward(DenseBuffer& buffer, bool for_backward) const;

  /// `gradient`: of the buffer's shape, in the type of the maths; the layer's share is added to the channels
  /// that it reads (where `to_features`) and to `corrections`.
  DenseLayerGradients backward(const DenseBuffer& buffer, const DenseLayerKept& kept,
                               const at::Tensor& gradient, DenseCorrections& corrections, bool to_features,
                               const DenseLayerGradients& wanted) const;

 private:
  DenseRead read(const DenseBuffer& buffer) const;

  const DenseLayer& l_;
  const DenseBlockOptions& options_;
  int64_t channels_;
  const std::optional<ProductPrecision>& precision_;
};

/// Puts dense `values` into the channels from `first` on, and takes their statistics where those are kept.
void put_features(DenseBuffer& buffer, int64_t first, const at::Tensor& values);

}  // namespace palimpsest::ops
