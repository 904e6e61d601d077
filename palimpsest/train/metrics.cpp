#include "palimpsest/train/metrics.h"

#include "palimpsest/ops/cuda.h"
#include "palimpsest/ops/upsampled_loss.h"
#include "palimpsest/train/common/count_ids.h"
#include "palimpsest/train/common/label_error.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace palimpsest::train {
namespace {

constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : kNothing;
}

/// Returns the targets that are not void. Throws Error(kData) for a target that is no class.
at::Tensor valid_targets(const at::Tensor& targets, const at::Tensor& valid, int64_t classes,
                         int64_t ignore_id) {
  at::Tensor truth = targets.masked_select(valid);
  if (truth.numel() > 0) {
    const int64_t low = truth.min().item<int64_t>(), high = truth.max().item<int64_t>();
    if (low < 0 || high >= classes) throw label_error(low < 0 ? low : high, classes, ignore_id);
  }
  return truth;
}

/// Returns the place of the true class in the order of the scores, (N): 0 for the best. `truth`: (N, 1).
at::Tensor ranks_of(const at::Tensor& scores, const at::Tensor& truth) {
  const at::Tensor true_score = scores.gather(1, truth);
  const at::Tensor ids = at::arange(scores.size(1), truth.options()).unsqueeze(0);
  const at::Tensor higher =
      scores.gt(true_score).logical_or_(scores.eq(true_score).logical_and_(ids.lt(truth)));
  return higher.sum(1).masked_fill(true_score.squeeze(1).isnan(), std::numeric_limits<int64_t>::max());
}

}  // namespace

at::Tensor predicted_classes(const at::Tensor& logits, at::IntArrayRef size) {
  if (ops::has_kernels_for(logits.device())) return ops::upsampled_argmax(logits, size);
  if (logits.sizes().slice(2) == size) return logits.argmax(1);
  return at::upsample_bilinear2d(logits, size, /*align_corners=*/false).argmax(1);
}

MetricsAccumulator::MetricsAccumulator(bool segmentation, int64_t classes, int64_t ignore_id,
                                       bool counts_pairs, std::optional<bool> reads_late)
    : segmentation_(segmentation),
      classes_(classes),
      ignore_id_(ignore_id),
      reads_late_(reads_late),
      confusion_(segmentation || counts_pairs ? static_cast<std::size_t>(classes * classes) : 0) {}

void MetricsAccumulator::add(const at::Tensor& logits, const at::Tensor& targets) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK(logits.dim() == (segmentation_ ? 4 : 2) && logits.size(1) == classes_ &&
                  targets.dim() == logits.dim() - 1 && targets.size(0) == logits.size(0),
              "[metrics] needs logits (N, ", classes_,
              segmentation_ ? ", H, W) and targets (N, H, W)" : ") and targets (N)", ", got ", logits.sizes(),
              " and ", targets.sizes());
  if (!segmentation_ && stays_on_device(targets)) return add_labels_on_device(logits, targets);
  if (!segmentation_) return add_labels(logits, targets);
  for (int64_t i = 0; i < logits.size(0); ++i)
    add_classes(predicted_classes(logits.narrow(0, i, 1), targets.sizes().slice(1)), targets.narrow(0, i, 1));
}

void MetricsAccumulator::add_classes(const at::Tensor& predicted, const at::Tensor& targets) {
  TORCH_CHECK(segmentation_ && predicted.sizes() == targets.sizes(),
              "[metrics] needs predicted classes and targets of pixels, of one shape, got ",
              predicted.sizes(), " and ", targets.sizes());
  if (stays_on_device(targets)) return add_classes_on_device(predicted, targets);
  const at::Tensor valid = targets.ne(ignore_id_);
  count_pairs(valid_targets(targets, valid, classes_, ignore_id_), predicted.masked_select(valid));
}

void MetricsAccumulator::count_pairs(const at::Tensor& truth, const at::Tensor& predicted) {
  const at::Tensor counts = (truth * classes_ + predicted).bincount({}, classes_ * classes_).cpu();
  const int64_t* values = counts.const_data_ptr<int64_t>();
  for (std::size_t k = 0; k < confusion_.size(); ++k) confusion_[k] += values[k];
}

void MetricsAccumulator::add_labels(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor valid = targets.ne(ignore_id_);
  const at::Tensor truth = valid_targets(targets, valid, classes_, ignore_id_).unsqueeze(1);
  const at::Tensor scores = logits.index({valid});
  const at::Tensor rank = ranks_of(scores, truth);
  top1_ += rank.lt(1).sum().item<int64_t>();
  top5_ += rank.lt(5).sum().item<int64_t>();
  count_ += truth.size(0);
  if (!confusion_.empty()) count_pairs(truth.squeeze(1), scores.argmax(1));
}

/// Returns which targets are classes, and notes the first wrong label.
at::Tensor MetricsAccumulator::counted_on_device(const at::Tensor& targets) {
  const at::Tensor wrong = wrong_targets(targets, classes_, ignore_id_);
  const at::Tensor label = first_wrong_label(targets, wrong);
  wrong_label_ = wrong_label_.defined() ? at::where(wrong_label_.isnan(), label, wrong_label_) : label;
  return targets.ne(ignore_id_).logical_and_(wrong.logical_not());
}

void MetricsAccumulator::add_pairs_on_device(const at::Tensor& truth, const at::Tensor& predicted,
                                             const at::Tensor& counts) {
  const int64_t pairs = classes_ * classes_;
  const at::Tensor added =
      count_ids_by_adding(at::where(counts, truth * classes_ + predicted, pairs), pairs + 1);
  pairs_ = pairs_.defined() ? pairs_.add_(added) : added;
}

void MetricsAccumulator::add_classes_on_device(const at::Tensor& predicted, const at::Tensor& targets) {
  add_pairs_on_device(targets, predicted, counted_on_device(targets));
}

void MetricsAccumulator::add_labels_on_device(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor counts = counted_on_device(targets);
  const at::Tensor truth = targets.masked_fill(counts.logical_not(), 0).unsqueeze(1);
  const at::Tensor rank = ranks_of(logits, truth);
  const auto sum = [&](const at::Tensor& hits) { return hits.logical_and(counts).sum(); };
  const at::Tensor hits = at::stack({sum(rank.lt(1)), sum(rank.lt(5)), counts.sum()});
  hits_ = hits_.defined() ? hits_.add_(hits) : hits;
  if (!confusion_.empty()) add_pairs_on_device(truth.squeeze(1), logits.argmax(1), counts);
}

/// Adds what the device has counted to the counters of the host.
void MetricsAccumulator::read() const {
  if (!wrong_label_.defined()) return;
  refuse_wrong_label(std::exchange(wrong_label_, {}).item<double>(), classes_, ignore_id_);
  if (const at::Tensor pairs = std::exchange(pairs_, {}); pairs.defined()) {
    const at::Tensor read = pairs.cpu();
    const int64_t* values = read.const_data_ptr<int64_t>();
    for (std::size_t k = 0; k < confusion_.size(); ++k) confusion_[k] += values[k];
  }
  if (const at::Tensor hits = std::exchange(hits_, {}); hits.defined()) {
    const at::Tensor read = hits.cpu();
    const int64_t* values = read.const_data_ptr<int64_t>();
    top1_ += values[0], top5_ += values[1], count_ += values[2];
  }
}

const std::vector<int64_t>& MetricsAccumulator::confusion() const {
  read();
  return confusion_;
}

int64_t MetricsAccumulator::counted() const {
  read();
  return segmentation_ ? std::accumulate(confusion_.begin(), confusion_.end(), int64_t{0}) : count_;
}

std::vector<int64_t> MetricsAccumulator::counters() const {
  read();
  if (segmentation_) return confusion_;
  std::vector<int64_t> all{top1_, top5_, count_};
  all.insert(all.end(), confusion_.begin(), confusion_.end());
  return all;
}

void MetricsAccumulator::set_counters(const std::vector<int64_t>& counters) {
  const std::size_t before = segmentation_ ? 0 : 3;
  TORCH_CHECK(counters.size() == before + confusion_.size(), "[metrics] needs ", before + confusion_.size(),
              " counters, got ", counters.size());
  wrong_label_ = pairs_ = hits_ = at::Tensor();
  confusion_.assign(counters.begin() + static_cast<std::ptrdiff_t>(before), counters.end());
  if (!segmentation_) top1_ = counters[0], top5_ = counters[1], count_ = counters[2];
}

Metrics MetricsAccumulator::result() const {
  read();
  Metrics metrics;
  if (!segmentation_) {
    metrics.top1 = share(top1_, count_);
    metrics.top5 = share(top5_, count_);
    return metrics;
  }
  int64_t hits = 0, pixels = 0, present = 0;
  double sum = 0;
  for (int64_t k = 0; k < classes_; ++k) {
    int64_t truth = 0, predicted = 0;
    for (int64_t j = 0; j < classes_; ++j) {
      truth += confusion_[k * classes_ + j];
      predicted += confusion_[j * classes_ + k];
    }
    const int64_t hit = confusion_[k * classes_ + k], united = truth + predicted - hit;
    hits += hit;
    pixels += truth;
    const bool counts = k != ignore_id_ && united > 0;
    metrics.class_iou.push_back(counts ? share(hit, united) : kNothing);
    if (counts) {
      ++present;
      sum += metrics.class_iou.back();
    }
  }
  metrics.mean_iou = present > 0 ? sum / static_cast<double>(present) : kNothing;
  metrics.pixel_accuracy = share(hits, pixels);
  return metrics;
}

}  // namespace palimpsest::train
