#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::train {

/// Results of an evaluation; only the fields of the task are filled.
struct Metrics {
  double mean_iou = 0;             ///< over classes that occur in truth or prediction, in [0, 1]
  std::vector<double> class_iou;   ///< NaN for a class that does not occur
  double pixel_accuracy = 0;
  double top1 = 0, top5 = 0;       ///< in [0, 1]
};

/// Accumulates a confusion matrix (segmentation) or hits (classification) over batches.
class MetricsAccumulator {
 public:
  MetricsAccumulator(bool segmentation, int64_t classes, int64_t ignore_id);
  void add(const at::Tensor& logits, const at::Tensor& targets);
  Metrics result() const;

 private:
  bool segmentation_;
  int64_t classes_, ignore_id_;
  std::vector<int64_t> confusion_;  // (classes, classes): truth, prediction
  int64_t top1_ = 0, top5_ = 0, count_ = 0;
};

}  // namespace palimpsest::train
