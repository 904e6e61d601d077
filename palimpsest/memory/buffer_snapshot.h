#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest::memory {

/// Saves the values of a module's buffers (running statistics, counters of batches) and restores them later.
/// An activation that overflows moves running statistics to infinity or NaN, where they stay. A training step
/// that is skipped because of such an overflow leaves no trace if its buffers are restored:
///
///   memory::BufferSnapshot statistics(net->buffers());
///   for (...) {
///     statistics.save();
///     scaler.scale(loss_of(net->forward(images))).backward();
///     if (!scaler.step(sgd)) statistics.restore();
///   }
///
/// memory::recompute() restores RecomputeOptions::buffers in the same way after a second run.
class BufferSnapshot {
 public:
  /// Saves the present values of `buffers`, which takes as much memory as they do. Undefined tensors are
  /// ignored.
  explicit BufferSnapshot(const std::vector<at::Tensor>& buffers);

  /// Saves the present values, in the memory of the values that were saved before.
  void save();

  /// Writes the saved values into the buffers. Autograd does not count this as an in-place operation: a graph
  /// that saved a buffer before the snapshot remains valid. If a layer in evaluation mode read other values
  /// of a buffer since then, run that backward pass before restore().
  void restore() const;

 private:
  struct Buffer {
    at::Tensor buffer, values;
  };
  std::vector<Buffer> buffers_;
};

}  // namespace palimpsest::memory
