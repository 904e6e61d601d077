#pragma once

#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/dense_block.h"
#include "palimpsest/ops/dense_block/device.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// One layer of ops::dense_block without autograd and autocast.
namespace palimpsest::ops::dense_block_detail {

/// The tensors that a normalization inside the layer (not over the buffer) saves for backward.
struct SavedNorm {
  Saved saved = Saved::kOutput;                   ///< which tensor `saved_values` is, as forward chose it
  Activation activation = Activation::kIdentity;  ///< as forward ran it
  at::Tensor saved_values;
  abn_detail::Statistics statistics;
};

/// The tensors that a layer saves for backward, beside its parameters and its slot of the buffer.
struct SavedLayer {
  SavedNorm bottleneck, features;  ///< `features`: norm2 in post-activation order
  /// Reproduces dropout's factors: the generator's state before it drew them, or one byte per value that
  /// stays (Device::replays_dropout).
  at::Tensor dropout;
};

/// The gradients of a layer's parameters; undefined where not needed.
struct LayerGradients {
  at::Tensor weight1, bias1, conv1_weight, weight2, bias2, conv2_weight;
};

/// Selects the gradients that are needed.
struct LayerWants {
  bool weight1 = false, bias1 = false, conv1_weight = false, weight2 = false, bias2 = false,
       conv2_weight = false;
};

/// A layer that reads the first `channels` of the buffer. If `precision` is given, its storage type is the
/// buffer's dtype, and each pass rounds the convolutions' weights to this type. Otherwise the weights have
/// the buffer's dtype.
class LayerPass {
 public:
  LayerPass(const DenseLayer& layer, const DenseBlockOptions& options, int64_t channels,
            const std::optional<ProductPrecision>& precision)
      : layer_(layer), options_(options), channels_(channels), precision_(precision) {}

  int64_t growth() const { return layer_.conv2_weight.size(0); }

  /// Writes the layer's slot of the buffer and its statistics, and moves the running statistics.
  SavedLayer forward(Buffer& buffer, bool for_backward) const;

  /// `gradient`: shape of the buffer, accumulate type. Adds the layer's share to the channels that it reads
  /// (if `to_features`) and to `corrections`.
  LayerGradients backward(const Buffer& buffer, const SavedLayer& saved, const at::Tensor& gradient,
                          Corrections& corrections, bool to_features, const LayerWants& wanted) const;

 private:
  Read read(const Buffer& buffer) const;

  const DenseLayer& layer_;
  const DenseBlockOptions& options_;
  int64_t channels_;
  const std::optional<ProductPrecision>& precision_;
};

/// Copies contiguous `values` into the channels from `first` on, and computes their statistics if the buffer
/// has any: with a group, by one collective.
void put_features(Buffer& buffer, int64_t first, const at::Tensor& values);

/// Returns the gradient of `count` channels from `first` on, after all their readers have added theirs. With
/// a group it first adds the corrections of these channels over the ranks, by one collective.
at::Tensor feature_gradient(const Buffer& buffer, int64_t first, int64_t count, const at::Tensor& gradient,
                            const Corrections& corrections);

}  // namespace palimpsest::ops::dense_block_detail
