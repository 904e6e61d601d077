#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/data/loader.h"
#include "palimpsest/memory/timeline.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/train/mixed_precision.h"
#include "palimpsest/train/tensor_format.h"

#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace palimpsest::cli {

/// Examples for batches of any size: the first ones of a data set, over and over. Held outside of the
/// counting allocator, so that what is measured is a training step and not the source of its batch.
class BatchSource {
 public:
  /// Draws `options.train.batch` examples as the training would.
  BatchSource(const Options& options, std::shared_ptr<const data::Dataset> dataset);
  data::Batch make(int64_t size) const;

 private:
  std::vector<int64_t> image_shape_, target_shape_;  // of a whole batch
  std::vector<float> images_;
  std::vector<int64_t> targets_;
};

/// What one step takes (docs/memory.md: kept, peak).
struct StepMemory {
  int64_t kept_bytes = 0, peak_bytes = 0;
  std::vector<memory::Timeline::Sample> timeline;
  std::vector<memory::Timeline::Mark> marks;  ///< forward, backward, step
};

/// A freshly initialized model and its optimizer, as a training of `options` would begin, taking steps on a
/// fixed batch to be measured. A step is that of train::train: forward, loss, backward, update, gradients
/// freed.
class Rehearsal {
 public:
  Rehearsal(const Options& options, const BatchSource& source);

  /// Seconds of one step with a batch of options.train.batch.
  double time_step();
  /// Memory of one step; call it when nothing else lives in the process, and after steps that made the
  /// momentum.
  StepMemory measure_step();
  /// Whether a step with a batch of `size` runs while no more than `limit` bytes are live, the model's
  /// included.
  bool fits(int64_t size, int64_t limit);

 private:
  void step(const data::Batch& batch, const std::function<void(const char*)>& entering = {});

  const Options& options_;
  const BatchSource& source_;
  train::TensorFormat format_;
  std::shared_ptr<nn::Model> model_;
  train::LossOptions loss_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  std::unique_ptr<train::MixedPrecision> mixed_;
};

/// The largest size that `fits` accepts, 0 for none, searched from `start` by doubling, then bisection.
/// `fits` must accept every size below one that it accepts, except that it may refuse the smallest ones.
int64_t largest_fitting(int64_t start, const std::function<bool(int64_t)>& fits);

double median(std::vector<double> values);

}  // namespace palimpsest::cli
