#pragma once

#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/options.h"
#include "palimpsest/data/loader.h"
#include "palimpsest/memory/timeline.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/train/ema.h"
#include "palimpsest/train/frozen.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/step.h"
#include "palimpsest/train/tensor_format.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace palimpsest::cli {

/// Makes batches of any size by repeating the first examples of a data set. Holds them outside of the
/// counting allocator, so a measurement sees the training step and not the source of its batch.
class RepeatedBatch {
 public:
  /// Draws `options.train.batch` examples as the training would.
  RepeatedBatch(const Options& options, const Datasets& sets);
  data::Batch make(int64_t size) const;

 private:
  std::vector<int64_t> image_shape_, target_shape_;  // of a whole batch
  std::vector<float> images_;
  std::vector<int64_t> targets_;
};

/// Memory of one step (docs/memory.md defines kept and peak).
struct StepMemory {
  int64_t kept_bytes = 0, peak_bytes = 0;
  std::vector<memory::Timeline::Sample> timeline;
  std::vector<memory::Timeline::Mark> marks;  ///< "forward", "backward", "step"
};

/// Measures the training step of `options` (train/step.h) on their device: a freshly initialized model and
/// its optimizer take steps on a fixed batch.
class StepProbe {
 public:
  StepProbe(const Options& options, const RepeatedBatch& source);

  // Each of these takes steps until one was not skipped, and measures that one: the first scales of f16 may
  // be too large for the gradients, and a skipped step allocates no momentum. Throws Error(kDiverged) after
  // train::Step::kHopeless skipped steps in a row.

  /// Returns the seconds of one step with a batch of options.train.batch.
  double time_step();
  /// Measures the memory of one step. Call it while no other probe lives in the process, and after
  /// time_step(), which allocates the momentum.
  StepMemory measure_step();
  /// Returns whether a step on `size` images of `source` runs with at most `limit` live bytes, model
  /// included. Call it after time_step(), which allocates the momentum: it counts. On a GPU a step that needs
  /// more may run all the same; then its peak decides. Where the GPU has no more memory, the blocks kept for
  /// reuse are given back.
  bool fits(const RepeatedBatch& source, int64_t size, int64_t limit);

 private:
  /// Calls `attempt`, which returns whether it took a step, until it did.
  void until_taken(const std::function<bool()>& attempt);
  /// Returns false if the step was skipped.
  bool step(data::Batch batch, const train::Step::RunOptions& run = train::Step::RunOptions());

  const Options& options_;
  const RepeatedBatch& source_;
  train::TensorFormat format_;
  train::LossOptions loss_;
  std::shared_ptr<nn::Model> model_;
  std::optional<train::Frozen> frozen_;
  std::optional<train::Average> average_;  // only its memory counts
  train::GroupedOptimizer optimizer_;
  train::Step step_;
};

/// Returns the largest size that `fits` accepts; 0 if it accepts none. Searches from `start` by doubling,
/// then by bisection. If `fits` accepts a size it must accept all smaller sizes, except that it may refuse
/// the smallest sizes.
int64_t largest_fitting(int64_t start, const std::function<bool(int64_t)>& fits);

double median(std::vector<double> values);

}  // namespace palimpsest::cli
