#include "palimpsest/train/evaluate.h"

#include "palimpsest/train/common/label_error.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/metrics.h"
#include "palimpsest/train/rethrow.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

namespace palimpsest::train {
namespace {

struct Totals {
  double loss = 0;
  int64_t valid = 0;
};

/// Returns whether there is one label per pixel rather than one per image.
bool labels_pixels(const at::Tensor& targets) {
  return targets.dim() > 1;
}

void add_batch(const Network& network, data::Batch& batch, const LossOptions& given,
               const TensorFormat& format, std::optional<MetricsAccumulator>& metrics, Totals& totals) {
  format.convert(batch);
  const LossOptions options = loss_for(batch.targets, given);
  const at::Tensor logits = forward(network, batch.images, format.precision);
  const int64_t valid = batch.targets.ne(options.ignore_id).sum().item<int64_t>();
  totals.loss += loss(logits, batch.targets, options).item<double>() * static_cast<double>(valid);
  totals.valid += valid;
  if (!metrics) metrics.emplace(labels_pixels(batch.targets), logits.size(1), options.ignore_id);
  metrics->add(logits, batch.targets);
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
                                                const TensorFormat& format) {
  const at::NoGradGuard no_grad;
  const EvalMode eval_mode(network.module());
  format.convert(network.module());

  std::optional<MetricsAccumulator> metrics;
  Totals totals;
  EvaluationRecord record;
  batches.start_epoch(0, 0);
  std::string doing = "the evaluation";
  try {
    while (auto batch = batches.next()) {
      doing = "the evaluation of " + describe(batch->images);
      record.images += batch->images.size(0);
      record.segmentation = labels_pixels(batch->targets);
      add_batch(network, *batch, loss, format, metrics, totals);
      if (stopped()) return std::nullopt;
    }
  } catch (...) {
    rethrow_explained(doing);
  }
  require(metrics.has_value(), "an evaluation needs at least one batch, got none");
  record.loss = totals.valid > 0 ? totals.loss / static_cast<double>(totals.valid) : 0;
  if (std::isnan(record.loss)) record.loss = std::abs(record.loss);  // "-nan" says nothing more
  record.metrics = metrics->result();
  return record;
}

EvaluationRecord evaluate(const Network& network, BatchSource& batches, const LossOptions& loss,
                          const TensorFormat& format) {
  return *evaluate_unless([] { return false; }, network, batches, loss, format);
}

EvaluationRecord evaluate(const Network& network, data::Loader& loader, const LossOptions& loss,
                          const TensorFormat& format) {
  LoaderBatches batches(loader);
  return evaluate(network, batches, loss, format);
}

}  // namespace palimpsest::train
