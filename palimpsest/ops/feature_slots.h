#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// The features of a densely connected block in one buffer, which is also its result, while every feature is
/// a tensor of its own for those who read and keep it: what they keep, and the result, take memory once.
///
///   FeatureSlots slots(x, channels_of_all);
///   while (...) slots.put(layer(slots.features()));
///   return slots.result();
namespace palimpsest::ops {

class FeatureSlots {
 public:
  /// Makes the buffer, (N, `channels`, ...) of x's type and layout, and puts x into it.
  FeatureSlots(const at::Tensor& x, int64_t channels);

  /// Copies `feature` behind those that are there; differentiable. Raises c10::Error where it does not fit.
  void put(const at::Tensor& feature);

  /// So far: strided parts of the buffer.
  const std::vector<at::Tensor>& features() const { return features_; }

  /// The buffer. Whoever writes over it before backward gets libtorch's error, as the features lie there.
  at::Tensor result() const;

 private:
  at::Tensor buffer_;
  int64_t filled_ = 0;
  std::vector<at::Tensor> features_;
};

}  // namespace palimpsest::ops
