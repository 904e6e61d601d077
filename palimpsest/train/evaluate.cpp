#include "palimpsest/train/evaluate.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/train/common/bad_images.h"
#include "palimpsest/train/common/batch_feed.h"
#include "palimpsest/train/common/count_ids.h"
#include "palimpsest/train/common/label_error.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/metrics.h"
#include "palimpsest/train/rethrow.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

struct Totals {
  double loss = 0, weight = 0;  // the loss is that of all pixels (images) that count, times their weight
  int64_t images = 0, bad_images = 0;
};

/// Returns whether there is one label per pixel rather than one per image.
bool labels_pixels(const at::Tensor& targets) {
  return targets.dim() > 1;
}

/// Replaces totals and metrics by those of all ranks. A rank without a batch has no metrics and does not know
/// their kind. If no rank has a batch, all ranks stay without metrics and know the number of bad images.
void sum_over_ranks(distributed::Group& group, std::optional<MetricsAccumulator>& metrics, Totals& totals,
                    const EvaluationOptions& options) {
  const int64_t kind = group.max(metrics ? 2 * metrics->classes() + metrics->is_segmentation() : 0,
                                 "the kind of the evaluation");
  if (kind == 0) {
    totals.bad_images = group.sum(totals.bad_images, "the number of bad images");
    return;
  }
  if (!metrics)
    metrics.emplace(kind % 2 != 0, kind / 2, options.loss.ignore_id, kind / 2 <= options.confusion_classes);
  std::vector<int64_t> counters = metrics->counters();
  counters.insert(counters.end(), {totals.images, totals.bad_images});
  counters = group.sum(std::span<const int64_t>(counters), "the metrics of the evaluation");
  const double mine[] = {totals.loss, totals.weight};
  const auto all = group.sum(std::span<const double>(mine), "the loss of the evaluation");
  totals = {all[0], all[1], counters.end()[-2], counters.end()[-1]};
  counters.resize(counters.size() - 2);
  metrics->set_counters(counters);
}

/// What the ranks do after a batch.
enum class AfterBatch { kNext, kEnd, kStop };

/// Ranks may have different numbers of batches: one goes on until none has a batch.
AfterBatch agree_after_batch(distributed::Group& group, bool had_batch, bool stopped) {
  const int64_t flags[] = {had_batch, stopped};
  const auto ranks = group.sum(std::span<const int64_t>(flags), "the progress of the evaluation");
  return ranks[1] > 0 ? AfterBatch::kStop : ranks[0] > 0 ? AfterBatch::kNext : AfterBatch::kEnd;
}

/// Computes losses and metrics of batches, and adds them up.
class Evaluation {
 public:
  Evaluation(const Network& network, const EvaluationOptions& options)
      : network_(network), options_(options) {}

  void add(const data::Batch& batch) {
    check_task(batch.targets);
    totals_.images += batch.images.size(0);
    if (!options_.views.is_single()) return add_views(batch);
    const LossOptions loss_options = loss_for(batch.targets, options_.loss);
    const at::Tensor logits =
        options_.ten_crop > 0 ? ten_crop_logits(network_, batch.images, options_.ten_crop, options_.format)
                              : coarse_logits(network_, batch.images, options_.format.precision);
    add_loss(summed_loss(logits, batch.targets, loss_options), logits.size(1), loss_options);
    MetricsAccumulator& metrics = metrics_of(batch.targets, logits.size(1));
    if (options_.observe) options_.observe(batch, logits);
    if (!options_.labels) return metrics.add(logits, batch.targets);
    for (int64_t i = 0; i < logits.size(0); ++i) {
      const at::Tensor classes = predicted_classes(logits.narrow(0, i, 1), batch.targets.sizes().slice(1));
      metrics.add_classes(classes, batch.targets.narrow(0, i, 1));
      options_.labels(batch.names.at(i), classes[0].to(at::kCPU, at::kByte));
    }
  }

  std::optional<MetricsAccumulator>& metrics() { return metrics_; }
  /// Reads what is still on the device.
  Totals& totals() {
    if (!sums_.defined()) return totals_;
    const at::Tensor sums = std::exchange(sums_, {}).cpu();
    totals_.loss += sums.const_data_ptr<double>()[0];
    totals_.weight += sums.const_data_ptr<double>()[1];
    return totals_;
  }

 private:
  void check_task(const at::Tensor& targets) const {
    const bool pixels = labels_pixels(targets);
    require(!pixels || options_.ten_crop == 0,
            "ten crops are for images that have one label each, and these have one label per pixel");
    require(pixels || (options_.views.is_single() && !options_.labels),
            "scales, flip, windows and label images are for labels of pixels, and these images have one "
            "label each");
  }

  MetricsAccumulator& metrics_of(const at::Tensor& targets, int64_t classes) {
    if (!metrics_)
      metrics_.emplace(labels_pixels(targets), classes, loss_for(targets, options_.loss).ignore_id,
                       classes <= options_.confusion_classes, options_.reads_late);
    require(!options_.labels || classes <= 256,
            fmt::format("label images hold at most 256 classes, got {}", classes));
    return *metrics_;
  }

  /// Adds in f64, on the device as on the host.
  void add_loss(const SummedLoss& loss, int64_t classes, const LossOptions& loss_options) {
    if (!options_.reads_late.value_or(!loss.sum.is_cpu())) {
      refuse_wrong_label(loss.wrong_label.item<double>(), classes, loss_options.ignore_id);
      totals_.loss += loss.sum.item<double>();
      totals_.weight += loss.weight.item<double>();
      return;
    }
    const at::Tensor sums = at::stack({loss.sum, loss.weight});
    sums_ = sums_.defined() ? sums_.add_(sums) : sums;
  }

  void add_views(const data::Batch& batch) {
    for (int64_t i = 0; i < batch.images.size(0); ++i) {
      const at::Tensor classes = add_image(batch.images[i], batch.targets.narrow(0, i, 1));
      if (options_.labels) options_.labels(batch.names.at(i), classes);
    }
  }

  /// Returns the predicted classes, u8 (H, W), if they are asked for.
  at::Tensor add_image(const at::Tensor& image, const at::Tensor& target) {
    const bool ranks_pixels = options_.loss.kind == "bootstrap";
    std::vector<at::Tensor> losses;
    at::Tensor labels;
    if (options_.labels) labels = at::empty(target.sizes().slice(1), at::kByte);
    for_each_band(
        network_, image, options_.views, options_.format, [&](int64_t top, const at::Tensor& probabilities) {
          const int64_t rows = probabilities.size(1);
          const at::Tensor truth = target.narrow(1, top, rows);
          const at::Tensor classes = predicted_classes(probabilities.unsqueeze(0), truth.sizes().slice(1));
          metrics_of(target, probabilities.size(0)).add_classes(classes, truth);
          if (options_.labels) labels.narrow(0, top, rows).copy_(classes[0]);
          const at::Tensor counted = counted_pixels(truth);
          // A pixel that does not count may have any loss, but needs a class.
          const at::Tensor of_band =
              losses_of_pixels(probabilities, truth.masked_fill(counted.logical_not(), 0), options_.loss);
          if (ranks_pixels) {
            losses.push_back(of_band);
          } else {
            add_loss_of_pixels(of_band, counted);
          }
        });
    if (ranks_pixels) add_loss_of_pixels(at::cat(losses, 1), counted_pixels(target));
    return labels;
  }

  void add_loss_of_pixels(const at::Tensor& losses, const at::Tensor& counted) {
    add_loss(loss_of_pixels(losses.unsqueeze(1), counted.view({1, -1}), options_.loss), metrics_->classes(),
             options_.loss);
  }

  /// The metrics throw for a label that is wrong, on a GPU at the end only.
  at::Tensor counted_pixels(const at::Tensor& truth) const {
    return counted_targets(truth, metrics_->classes(), options_.loss.ignore_id);
  }

  const Network& network_;
  const EvaluationOptions& options_;
  std::optional<MetricsAccumulator> metrics_;
  Totals totals_;
  at::Tensor sums_;  // of loss and weight, on the device; undefined: nothing
};

std::optional<EvaluationRecord> run_unless(const std::function<bool()>& stopped, const Network& network,
                                           BatchSource& batches, const EvaluationOptions& options,
                                           distributed::Group* group) {
  check_share(batches, group, "the batches of the evaluation");
  check_views(options.views);
  const at::NoGradGuard no_grad;
  const EvalMode eval_mode(network.module());
  options.format.convert(network.module());

  Evaluation evaluation(network, options);
  std::optional<MetricsAccumulator>& metrics = evaluation.metrics();
  Totals totals;
  BatchFeed feed(batches, options.format.device);
  feed.start_epoch(0, 0);
  std::string doing = "the evaluation";
  std::vector<data::BadExample> bad;
  try {
    for (auto then = AfterBatch::kNext; then != AfterBatch::kEnd;) {
      auto batch = feed.next();
      for (data::BadExample& example : feed.take_bad()) bad.push_back(std::move(example));
      if (batch) {
        doing = "the evaluation of " + describe(batch->images);
        options.format.convert(*batch);
        evaluation.add(*batch);
        feed.prepare();
      }
      if (group) {
        then = agree_after_batch(*group, batch.has_value(), stopped());
      } else {
        then = !batch ? AfterBatch::kEnd : stopped() ? AfterBatch::kStop : AfterBatch::kNext;
      }
      if (then == AfterBatch::kStop) return std::nullopt;
    }
    totals = evaluation.totals();
    totals.bad_images = static_cast<int64_t>(bad.size());
    if (group) sum_over_ranks(*group, metrics, totals, options);
  } catch (...) {
    rethrow_explained(doing);
  }
  if (!metrics && totals.bad_images > 0) {
    const Error error(ErrorKind::kData,
                      fmt::format("none of the {} images of the evaluation could be read; the first one: {}",
                                  totals.bad_images, reasons_of_all(bad, group).at(0)));
    if (group) group->throw_on_all(error);
    throw Error(error);
  }
  require(metrics.has_value(), "an evaluation needs at least one batch, got none");
  EvaluationRecord record;
  record.bad_images = totals.bad_images;
  if (totals.bad_images > 0) record.bad = reasons_of_all(bad, group);
  record.bad.resize(std::min(record.bad.size(), kNamedBadImages));
  record.images = totals.images;
  record.segmentation = metrics->is_segmentation();
  record.metrics = metrics->result();
  record.confusion = metrics->confusion();
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  record.labelled = metrics->counted() > 0;
  record.weighed = totals.weight > 0;
  record.loss = record.weighed ? totals.loss / totals.weight : kNone;
  if (std::isnan(record.loss)) record.loss = kNone;  // "-nan" says nothing more
  if (std::isnan(totals.loss)) {
    // NaN logits would count as the first class, whose share of the pixels looks like a result.
    Metrics& m = record.metrics;
    m.mean_iou = m.pixel_accuracy = m.top1 = m.top5 = kNone;
    std::fill(m.class_iou.begin(), m.class_iou.end(), kNone);
    record.confusion.clear();
  }
  return record;
}

}  // namespace

EvalMode::EvalMode(torch::nn::Module& module) {
  module.apply([this](torch::nn::Module& m) { modes_.emplace_back(&m, m.is_training()); });
  module.eval();
}

EvalMode::~EvalMode() {
  // Parents come first, and train() reaches all children: each child's own mode is set last.
  for (auto& [module, training] : modes_) module->train(training);
}

LossOptions loss_for(const at::Tensor& targets, LossOptions loss) {
  if (!labels_pixels(targets)) loss.ignore_id = kNoIgnoreId;
  return loss;
}

bool has_metrics(const EvaluationRecord& record) {
  return !std::isnan(record.segmentation ? record.metrics.pixel_accuracy : record.metrics.top1);
}

std::string doubt_of(const EvaluationRecord& record) {
  if (!record.labelled)
    return fmt::format(
        "no pixel of the {} has a class: there is no loss and no IoU; look at the labels, "
        "the ignore id and the split",
        counted(record.images, "evaluated image"));
  if (has_metrics(record) && !record.weighed)
    return fmt::format(
        "nothing of the {} counts in the loss, which has no value: class weights or the bootstrap "
        "probability leave out all that have a class; the metrics count them",
        counted(record.images, "evaluated image"));
  if (!has_metrics(record))
    return fmt::format(
        "the loss of the {} is NaN: the network's outputs are not finite, and its metrics "
        "are left out",
        counted(record.images, "evaluated image"));
  return "";
}

std::string describe(const at::Tensor& images) {
  return fmt::format("{} of {}", counted(images.size(0), "image"), fmt::join(images.sizes().slice(1), " x "));
}

std::optional<EvaluationRecord> evaluate_unless(const std::function<bool()>& stopped, const Network& network,
                                                BatchSource& batches, const LossOptions& loss,
                                                const TensorFormat& format, distributed::Group* group,
                                                const EvaluationObserver& observe,
                                                std::optional<bool> reads_late) {
  EvaluationOptions options;
  options.loss = loss;
  options.format = format;
  options.confusion_classes = kMostCountedClasses;
  options.observe = observe;
  options.reads_late = reads_late;
  return run_unless(stopped, network, batches, options, group);
}

EvaluationRecord evaluate(const Network& network, BatchSource& batches, const EvaluationOptions& options,
                          distributed::Group* group) {
  return *run_unless([] { return false; }, network, batches, options, group);
}

EvaluationRecord evaluate(const Network& network, BatchSource& batches, const LossOptions& loss,
                          const TensorFormat& format, distributed::Group* group) {
  return *evaluate_unless([] { return false; }, network, batches, loss, format, group);
}

EvaluationRecord evaluate(const Network& network, data::Loader& loader, const LossOptions& loss,
                          const TensorFormat& format, distributed::Group* group) {
  LoaderBatches batches(loader);
  return evaluate(network, batches, loss, format, group);
}

void check_share(const BatchSource& batches, const distributed::Group* group, const std::string& what) {
  const BatchSource::Share wanted =
      group ? BatchSource::Share{group->rank(), group->size()} : BatchSource::Share{};
  const BatchSource::Share share = batches.share();
  require(share == wanted,
          fmt::format("{} must be the share of process {} of {}, got that of process {} of {} "
                      "(LoaderOptions::rank and ranks, or BatchSource::share)",
                      what, wanted.rank, wanted.ranks, share.rank, share.ranks));
}

}  // namespace palimpsest::train
