#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace palimpsest::train {

/// Results of an evaluation; only the fields of the task are set. A value without data (no valid pixel, no
/// image) is NaN, and null in log.jsonl.
struct Metrics {
  double mean_iou = 0;            ///< over the classes of class_iou that are not NaN, in [0, 1]
  std::vector<double> class_iou;  ///< NaN for a class that does not occur, and for the ignored one
  double pixel_accuracy = 0;      ///< share of valid pixels whose class is predicted
  double top1 = 0, top5 = 0;      ///< in [0, 1]
};

/// Returns the class with the largest logit of each pixel of images of `size`, (N, H, W) of i64; the first of
/// equal ones. logits: (N, C, h, w), which are upsampled as in loss().
at::Tensor predicted_classes(const at::Tensor& logits, at::IntArrayRef size);

/// The most classes of a classification whose confusion the evaluations of a training count: 8 MB of
/// counters.
inline constexpr int64_t kMostCountedClasses = 1000;

/// Accumulates a confusion matrix M and, for a classification, hits over batches. Void pixels are not
/// counted.
///   IoU_k = M[k,k] / (sum_j M[k,j] + sum_j M[j,k] - M[k,k]),  M[truth, prediction]
/// An image is a top-5 hit if fewer than 5 classes have a higher score than the true class, which always
/// holds with 5 classes or fewer. Equal scores rank by class id, as in argmax. A NaN score is a miss.
///
/// On a GPU the counts stay on the device until result(), counters() or confusion() read them: add() waits
/// for nothing. A wrong label is then counted as void, and the reading function throws for it.
class MetricsAccumulator {
 public:
  /// `counts_pairs`: classification has a confusion matrix, too. Segmentation always has one. `reads_late`:
  /// counts stay on the device; by default on a GPU only, because the CPU counts faster at once.
  MetricsAccumulator(bool segmentation, int64_t classes, int64_t ignore_id, bool counts_pairs = false,
                     std::optional<bool> reads_late = std::nullopt);
  /// Adds a batch: logits (N, C, H, W) and targets i64 (N, H, W), or (N, C) and (N). Logits may be coarser
  /// than the targets, (N, C, h, w), as in loss(). Throws Error(kData) for a label that is neither a class
  /// nor the ignore id. Needs scratch memory for one image.
  void add(const at::Tensor& logits, const at::Tensor& targets);
  /// Adds the pixels of images whose classes are predicted already: both i64 (N, H, W). Throws as add() does.
  void add_classes(const at::Tensor& predicted, const at::Tensor& targets);
  Metrics result() const;
  /// Returns all counters, which metrics are computed from: M, or the hits, the number of images, and M if
  /// pairs are counted. Those of several accumulators of the same kind may be added and set: the metrics are
  /// then those of all their batches.
  std::vector<int64_t> counters() const;
  void set_counters(const std::vector<int64_t>& counters);
  /// Returns the number of pixels (images) that have a class.
  int64_t counted() const;
  bool is_segmentation() const { return segmentation_; }
  int64_t classes() const { return classes_; }
  /// Returns M, (classes, classes), row = truth, column = prediction; empty for classification
  /// without counts_pairs.
  const std::vector<int64_t>& confusion() const;

 private:
  bool stays_on_device(const at::Tensor& targets) const { return reads_late_.value_or(!targets.is_cpu()); }
  void count_pairs(const at::Tensor& truth, const at::Tensor& predicted);
  void add_labels(const at::Tensor& logits, const at::Tensor& targets);
  void add_classes_on_device(const at::Tensor& predicted, const at::Tensor& targets);
  void add_labels_on_device(const at::Tensor& logits, const at::Tensor& targets);
  at::Tensor counted_on_device(const at::Tensor& targets);
  void add_pairs_on_device(const at::Tensor& truth, const at::Tensor& predicted, const at::Tensor& counts);
  void read() const;

  bool segmentation_;
  int64_t classes_, ignore_id_;
  std::optional<bool> reads_late_;
  mutable std::vector<int64_t> confusion_;  // (classes, classes): truth, prediction
  mutable int64_t top1_ = 0, top5_ = 0, count_ = 0;
  // On the device, not read yet; undefined: nothing.
  mutable at::Tensor pairs_;  // i64 (classes * classes + 1): the last one has the pixels that do not count
  mutable at::Tensor hits_;   // i64 (3): top-1, top-5, all
  mutable at::Tensor wrong_label_;  // common/count_ids.h
};

}  // namespace palimpsest::train
