#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// The features of a densely connected block in one buffer, which is also the block's result. Each feature is
/// a tensor by itself for the operators that read and save it, so saved features and the result take memory
/// once.
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

  /// The features so far: strided parts of the buffer.
  const std::vector<at::Tensor>& features() const { return features_; }

  /// The buffer. Writing over it before backward raises libtorch's error at backward, as the features lie
  /// there.
  at::Tensor result() const;

 private:
  at::Tensor buffer_;
  int64_t filled_ = 0;
  std::vector<at::Tensor> features_;
};

}  // namespace palimpsest::ops
