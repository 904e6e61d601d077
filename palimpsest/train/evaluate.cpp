#include "palimpsest/train/evaluate.h"

#include "palimpsest/train/common/bad_images.h"
#include "palimpsest/train/common/label_error.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/metrics.h"
#include "palimpsest/train/rethrow.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

struct Totals {
  double loss = 0;  // times the number of pixels (images) that count
  int64_t counted = 0, images = 0, bad_images = 0;
};

/// Returns whether there is one label per pixel rather than one per image.
bool labels_pixels(const at::Tensor& targets) {
  return targets.dim() > 1;
}

/// Replaces totals and metrics by those of all ranks. A rank without a batch has no metrics and does not know
/// their kind.
void sum_over_ranks(distributed::Group& group, std::optional<MetricsAccumulator>& metrics, Totals& totals,
                    int64_t ignore_id) {
  const int64_t kind = group.max(metrics ? 2 * metrics->classes() + metrics->is_segmentation() : 0,
                                 "the kind of the evaluation");
  if (kind == 0) return;
  if (!metrics) metrics.emplace(kind % 2 != 0, kind / 2, ignore_id);
  std::vector<int64_t> counters = metrics->counters();
  counters.insert(counters.end(), {totals.counted, totals.images, totals.bad_images});
  counters = group.sum(std::span<const int64_t>(counters), "the metrics of the evaluation");
  totals = {group.sum(totals.loss, "the loss of the evaluation"), counters.end()[-3], counters.end()[-2],
            counters.end()[-1]};
  counters.resize(counters.size() - 3);
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

void add_batch(const Network& network, data::Batch& batch, const LossOptions& given,
               const TensorFormat& format, std::optional<MetricsAccumulator>& metrics, Totals& totals,
               const EvaluationObserver& observe) {
  format.convert(batch);
  const LossOptions options = loss_for(batch.targets, given);
  const at::Tensor logits = coarse_logits(network, batch.images, format.precision);
  const CountedLoss loss = counted_loss(logits, batch.targets, options);
  totals.loss += loss.mean.item<double>() * static_cast<double>(loss.count);
  totals.counted += loss.count;
  totals.images += batch.images.size(0);
  if (!metrics) metrics.emplace(labels_pixels(batch.targets), logits.size(1), options.ignore_id);
  metrics->add(logits, batch.targets);
  if (observe) observe(batch, logits);
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

std::string describe(const at::Tensor& images) {
  return fmt::format("{} images of {}", images.size(0), fmt::join(images.sizes().slice(1), " x "));
}

std::optional<EvaluationRecord> evaluate_unless(const std::function<bool()>& stopped, const Network& network,
                                                BatchSource& batches, const LossOptions& loss,
                                                const TensorFormat& format, distributed::Group* group,
                                                const EvaluationObserver& observe) {
  check_share(batches, group, "the batches of the evaluation");
  const at::NoGradGuard no_grad;
  const EvalMode eval_mode(network.module());
  format.convert(network.module());

  std::optional<MetricsAccumulator> metrics;
  Totals totals;
  batches.start_epoch(0, 0);
  std::string doing = "the evaluation";
  std::vector<data::BadExample> bad;
  try {
    for (auto then = AfterBatch::kNext; then != AfterBatch::kEnd;) {
      auto batch = batches.next();
      for (data::BadExample& example : batches.take_bad()) bad.push_back(std::move(example));
      if (batch) {
        doing = "the evaluation of " + describe(batch->images);
        add_batch(network, *batch, loss, format, metrics, totals, observe);
      }
      if (group) {
        then = agree_after_batch(*group, batch.has_value(), stopped());
      } else {
        then = !batch ? AfterBatch::kEnd : stopped() ? AfterBatch::kStop : AfterBatch::kNext;
      }
      if (then == AfterBatch::kStop) return std::nullopt;
    }
    totals.bad_images = static_cast<int64_t>(bad.size());
    if (group) sum_over_ranks(*group, metrics, totals, loss.ignore_id);
  } catch (...) {
    rethrow_explained(doing);
  }
  require(metrics.has_value(), "an evaluation needs at least one batch, got none");
  EvaluationRecord record;
  record.bad_images = totals.bad_images;
  if (totals.bad_images > 0) record.bad = reasons_of_all(bad, group);
  record.bad.resize(std::min(record.bad.size(), kNamedBadImages));
  record.images = totals.images;
  record.segmentation = metrics->is_segmentation();
  record.loss = totals.counted > 0 ? totals.loss / static_cast<double>(totals.counted) : 0;
  if (std::isnan(record.loss)) record.loss = std::abs(record.loss);  // "-nan" says nothing more
  record.metrics = metrics->result();
  return record;
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
