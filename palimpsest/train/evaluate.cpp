#include "palimpsest/train/evaluate.h"

#include "palimpsest/train/explain.h"
#include "palimpsest/train/metrics.h"
#include "palimpsest/train/trainer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

namespace palimpsest::train {
namespace {

struct Totals {
  double loss = 0;
  int64_t valid = 0;
};

void add_batch(nn::Model& model, data::Batch& batch, const LossOptions& options, const TensorFormat& format,
               std::optional<MetricsAccumulator>& metrics, Totals& totals) {
  format.convert(batch);
  const at::Tensor logits = format.forward(model, batch.images);
  const int64_t valid = batch.targets.ne(options.ignore_id).sum().item<int64_t>();
  totals.loss += loss(logits, batch.targets, options).item<double>() * static_cast<double>(valid);
  totals.valid += valid;
  if (!metrics) metrics.emplace(model.segments(), logits.size(1), options.ignore_id);
  metrics->add(logits, batch.targets);
}

}  // namespace

EvalMode::EvalMode(torch::nn::Module& module) {
  module.apply([this](torch::nn::Module& m) { modes_.emplace_back(&m, m.is_training()); });
  module.eval();
}

EvalMode::~EvalMode() {
  // Parents come first, and train() reaches all children: the last word is each child's own.
  for (auto& [module, training] : modes_) module->train(training);
}

LossOptions loss_for(const nn::Model& model, LossOptions loss) {
  if (!model.segments()) loss.ignore_id = std::numeric_limits<int64_t>::min();
  return loss;
}

std::string describe(const at::Tensor& images) {
  return fmt::format("{} images of {}", images.size(0), fmt::join(images.sizes().slice(1), " x "));
}

std::optional<EvaluationRecord> evaluate_unless(const std::function<bool()>& stopped, nn::Model& model,
                                                data::Loader& loader, const LossOptions& loss,
                                                const TensorFormat& format) {
  const at::NoGradGuard no_grad;
  const EvalMode eval_mode(model);
  format.convert(model);
  const LossOptions options = loss_for(model, loss);

  std::optional<MetricsAccumulator> metrics;
  Totals totals;
  EvaluationRecord record;
  record.segmentation = model.segments();
  loader.start_epoch(0);
  std::string doing = "the evaluation";
  try {
    while (auto batch = loader.next()) {
      doing = "the evaluation of " + describe(batch->images);
      record.images += batch->images.size(0);
      add_batch(model, *batch, options, format, metrics, totals);
      if (stopped()) return std::nullopt;
    }
  } catch (...) {
    rethrow_explained(doing);
  }
  TORCH_INTERNAL_ASSERT(metrics, "the loader gave no batch and no error");
  record.loss = totals.valid > 0 ? totals.loss / static_cast<double>(totals.valid) : 0;
  record.metrics = metrics->result();
  return record;
}

EvaluationRecord evaluate(nn::Model& model, data::Loader& loader, const LossOptions& loss,
                          const TensorFormat& format) {
  return *evaluate_unless([] { return false; }, model, loader, loss, format);
}

}  // namespace palimpsest::train
