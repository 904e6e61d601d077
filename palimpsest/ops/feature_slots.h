#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Holds the features of a densely connected block in one buffer, which is also the block's result. Operators
/// read and save each feature as a separate tensor in this buffer, so saved features and the result take
/// memory once.
///
///   FeatureSlots slots(x, total_channels);
///   while (...) slots.put(layer(slots.features()));
///   return slots.result();
namespace palimpsest::ops {

class FeatureSlots {
 public:
  /// Allocates the buffer, (N, `channels`, ...) with the dtype and layout of x, and puts x into it.
  FeatureSlots(const at::Tensor& x, int64_t channels);

  /// Copies `feature` behind the features so far; differentiable. Raises c10::Error if it does not fit.
  void put(const at::Tensor& feature);

  /// Returns the features so far, which are strided parts of the buffer.
  const std::vector<at::Tensor>& features() const { return features_; }

  /// Returns the buffer. If it is written over before backward, backward raises libtorch's error, because the
  /// features lie in it.
  at::Tensor result() const;

 private:
  at::Tensor buffer_;
  int64_t filled_ = 0;
  std::vector<at::Tensor> features_;
};

}  // namespace palimpsest::ops
