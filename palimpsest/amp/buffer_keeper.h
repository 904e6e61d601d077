#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

namespace palimpsest::amp {

/// Running statistics as they were before a forward pass, for a step that is skipped: an activation that
/// overflowed has moved them to infinity or NaN, where they would stay. With them put back, such a step
/// leaves no trace but in the scaler.
///
///   keeper.save();
///   scaler.scale(loss_of(net->forward(images))).backward();
///   if (!scaler.step(sgd)) keeper.restore();
class BufferKeeper {
 public:
  /// Of all buffers of `model` (counters, too); takes as much memory, once.
  explicit BufferKeeper(const torch::nn::Module& model);
  void save() const;
  void restore() const;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // buffer, its values
};

}  // namespace palimpsest::amp
