#include "palimpsest/train/trainer.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/explain.h"
#include "palimpsest/train/exponent_chart.h"
#include "palimpsest/train/mixed_precision.h"
#include "palimpsest/train/progress.h"
#include "palimpsest/train/require.h"
#include "palimpsest/train/run_log.h"
#include "palimpsest/train/tensor_format.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

namespace palimpsest::train {
namespace {

using Clock = std::chrono::steady_clock;

/// Skipped steps in a row after which a scale is not what is missing: halving 50 times leaves 2^-34 of it.
constexpr int64_t kHopeless = 50;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(const TrainerOptions& options, const data::Loader& loader) {
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    require(value >= least, fmt::format("{} must be at least {}, got {}", name, least, value));
  };
  at_least("epochs", options.epochs, 1);
  at_least("max_steps", options.max_steps, 0);
  at_least("log_every", options.log_every, 1);
  at_least("checkpoint_every", options.checkpoint_every, 0);
  at_least("evaluate_every", options.evaluate_every, 0);
  at_least("histogram_every", options.histogram_every, 0);
  check_loss(options.loss);
  require(loader.batches() > 0, fmt::format("an epoch needs at least one whole batch, got {} training images "
                                            "for a batch of {}: use a smaller batch",
                                            loader.dataset().size(), loader.options().batch_size));
  check_schedule(options.schedule, options.epochs * loader.batches(), loader.batches());
  require(!options.resume || !options.output.empty(),
          "resume needs the output folder of the run to continue, got none");
}

torch::optim::SGD prepare(nn::Model& model, const TensorFormat& format, const OptimizerOptions& options) {
  format.convert(model);  // first: the optimizer's momentum has the type of the parameters
  return make_sgd(model, options);
}

/// One call of train(): the state of a run between two steps is `step_`, the model, the optimizer and
/// libtorch's generator, and no more; a checkpoint is exactly that.
class Run {
 public:
  Run(nn::Model& model, data::Loader& loader, data::Loader* validation, const TrainerOptions& options,
      const std::atomic<int>& stop_signal)
      : model_(model),
        loader_(loader),
        validation_(validation),
        options_(options),
        stop_signal_(stop_signal),
        format_(TensorFormat::parse(options.dtype, options.channels_last, options.precision, options.device)),
        loss_options_(loss_for(model, options.loss)),
        optimizer_(prepare(model, format_, options.optimizer)),
        mixed_(model, format_.precision, parse_loss_scale(options.loss_scale)),
        batches_(loader.batches()),
        schedule_steps_(options.epochs * batches_),
        last_step_(options.max_steps > 0 ? std::min(options.max_steps, schedule_steps_) : schedule_steps_),
        fallbacks_before_(ops::abn_fallback_stats().layers) {}

  TrainingOutcome run() {
    begin();
    evaluate_if_due();  // of a run that was ended before it could
    bool positioned = false;
    while (step_ < last_step_ && !stopped()) {
      if (!positioned || step_ % batches_ == 0) loader_.start_epoch(step_ / batches_, step_ % batches_);
      positioned = true;
      take_step();
      // Before the evaluation: a run that is killed during it loses only the evaluation, and resuming makes
      // up for it.
      if (step_ % batches_ == 0 || step_ == last_step_ ||
          (options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0))
        save();
      evaluate_if_due();
    }
    if (saved_step_ != step_) save();  // stopped between two checkpoints
    outcome_.signal = stop_signal_.load();
    return std::move(outcome_);
  }

 private:
  bool stopped() const { return stop_signal_.load() != 0; }
  bool writes() const { return !options_.output.empty(); }
  std::filesystem::path checkpoint_path() const { return options_.output / "checkpoint.safetensors"; }

  void begin() {
    model_.train();
    if (options_.resume) {
      resume();
    } else {
      at::manual_seed(options_.seed);
    }
    if (!options_.quiet) progress_.emplace(std::cerr, stderr_columns(), last_step_, options_.epochs);
    if (progress_ && !resumed_otherwise_.empty()) progress_->note(resumed_otherwise_);
    if (!writes()) return;
    log_.emplace(options_.output / "log.jsonl", options_.resume ? step_ : -1);
    if (!options_.config.empty()) io::write_file_atomically(options_.output / "config.toml", options_.config);
    // Before the first step: a folder that cannot be written to shows now and not after an epoch, and a run
    // killed early can be resumed, not mistaken for the one that was in the folder before.
    if (!options_.resume) save();
  }

  void resume() {
    at::manual_seed(options_.seed);  // a checkpoint made on the CPU has no state of a GPU's generator
    const RunState state = load_checkpoint(checkpoint_path(), model_, optimizer_);
    const auto same = [&](const char* what, auto saved, auto now) {
      require(
          saved == now,
          fmt::format("{} was made with {} {}, this run has {}: the order of the data would not continue; "
                      "resume with the options of the run, or begin a new one",
                      checkpoint_path().string(), what, saved, now));
    };
    same("seed", state.seed, loader_.options().seed);
    same("batch size", state.batch_size, loader_.options().batch_size);
    same("batches per epoch", state.batches_per_epoch, batches_);
    step_ = saved_step_ = state.step;
    if (state.scaling) mixed_.load(*state.scaling);
    if (state.precision != options_.precision)
      resumed_otherwise_ = fmt::format(
          "the checkpoint of step {} was trained in {}, the run goes on in {}: parameters and momentum are "
          "{} in "
          "both{}",
          step_, state.precision, options_.precision, options_.dtype,
          mixed_.scales() ? fmt::format(", the loss scale is {}", mixed_.loss_scale()) : "");
  }

  void save() {
    if (!writes()) return;
    RunState state{step_,
                   batches_,
                   loader_.options().batch_size,
                   loader_.options().seed,
                   options_.metadata,
                   options_.precision,
                   mixed_.state()};
    if (!options_.config.empty()) state.metadata["config"] = options_.config;
    save_checkpoint(checkpoint_path(), model_, optimizer_, state);
    saved_step_ = step_;
  }

  void take_step() {
    const auto start = Clock::now();
    StepRecord record;
    std::string doing = fmt::format("step {}", step_ + 1);
    int64_t images = 0;
    try {
      std::optional<data::Batch> batch = loader_.next();
      TORCH_INTERNAL_ASSERT(batch, "the loader ended before batch ", step_ % batches_, " of ", batches_);
      record.data_seconds = seconds_since(start);
      images = batch->images.size(0);
      doing += " (" + describe(batch->images) + ")";
      update(*batch, record);
    } catch (...) {
      rethrow_explained(doing);
    }
    record.seconds = seconds_since(start) - record.data_seconds;
    record.epoch = step_ / batches_;
    record.step = ++step_;
    finish(record, images, seconds_since(start));
  }

  /// Forward, loss, backward, update.
  void update(data::Batch& batch, StepRecord& record) {
    record.lr = learning_rate(options_.schedule, options_.optimizer.lr, step_, schedule_steps_, batches_);
    set_learning_rate(optimizer_, record.lr);
    format_.convert(batch);
    std::optional<memory::Meter> meter;
    if (!format_.device.is_cpu() || memory::counting_allocator_installed()) meter.emplace(format_.device);

    record.loss_scale = mixed_.loss_scale();
    mixed_.begin(step_, options_.histogram_every > 0 && step_ % options_.histogram_every == 0);
    at::Tensor value = loss(format_.forward(model_, batch.images), batch.targets, loss_options_);
    mixed_.forward_done(value);
    if (meter) meter->forward_done();
    record.loss = value.item<double>();
    const bool finite = std::isfinite(record.loss);
    if (!finite && !mixed_.scales()) diverged(record);
    mixed_.backward(value);
    value.reset();
    const bool stepped = mixed_.step(optimizer_);
    optimizer_.zero_grad();  // frees the gradients: the next forward pass has their room
    if (stepped && !finite) diverged(record);
    if (mixed_.skipped_in_a_row() >= kHopeless) overflowed(record);
    record.skipped_steps = mixed_.skipped_steps();

    if (!meter) return;
    record.kept_bytes = meter->kept_bytes();
    record.peak_bytes = meter->peak_bytes();
    record.current_bytes = meter->current_bytes();
  }

  std::string what_stays() const {
    return saved_step_ < 0 ? ""
                           : fmt::format("; {} of step {} stays", checkpoint_path().string(), saved_step_);
  }

  [[noreturn]] void overflowed(const StepRecord& record) const {
    throw Error(
        ErrorKind::kDiverged,
        fmt::format("diverged: in {} no step of the last {} had finite gradients, up to step {} (loss {}, "
                    "loss scale {}){}; try precision bf16, {}",
                    options_.precision, kHopeless, step_ + 1, record.loss, record.loss_scale, what_stays(),
                    options_.loss_scale == "dynamic" ? "or a lower lr" : "or a smaller loss scale"));
  }

  [[noreturn]] void diverged(const StepRecord& record) const {
    const std::string kept = what_stays();
    throw Error(ErrorKind::kDiverged,
                fmt::format("diverged: the loss became {} in step {} (epoch {}, lr {:.3g}){}; try a lower lr "
                            "or a longer warm-up",
                            record.loss, step_ + 1, step_ / batches_ + 1, record.lr, kept));
  }

  /// Pace, log and progress of the step just done.
  void finish(StepRecord record, int64_t images, double seconds) {
    interval_images_ += images;
    interval_seconds_ += seconds;
    run_seconds_ += seconds;
    record.images_per_second = static_cast<double>(interval_images_) / std::max(interval_seconds_, 1e-9);
    outcome_.steps.push_back(record);
    const auto steps_done = static_cast<double>(outcome_.steps.size());
    record.eta_seconds = run_seconds_ / steps_done * static_cast<double>(last_step_ - step_);
    record.abn_fallbacks = ops::abn_fallback_stats().layers - fallbacks_before_;
    outcome_.steps.back() = record;

    const bool logged = step_ == 1 || step_ % options_.log_every == 0 || step_ == last_step_;
    if (logged && log_) log_->write(record);
    if (progress_) progress_->step(record, logged);
    if (options_.histogram_every > 0 && mixed_.observation()) show(*mixed_.observation());
    if (record.abn_fallbacks > 0 && !fallback_told_) tell_fallback(record.abn_fallbacks);
    if (logged) interval_images_ = 0, interval_seconds_ = 0;
  }

  void show(const MixedPrecision::Observation& seen) {
    const ExponentRecord record{step_, seen.activations, seen.weights, seen.recommended_scale()};
    outcome_.exponents = record;
    if (log_) log_->write(record);
    if (writes()) io::write_file_atomically(options_.output / "exponents.svg", to_svg(record));
    if (!progress_) return;
    const auto tell = [&](const char* what, const amp::ExponentHistogram& h) {
      const std::string text = h.text();  // its first line; the bars are in the log and in the chart
      if (h.values() > 0)
        progress_->note(fmt::format("{} of step {}: {}", what, step_, text.substr(0, text.find('\n'))));
    };
    tell("weights", seen.weights);
    tell("activations", seen.activations);
  }

  void tell_fallback(int64_t count) {
    fallback_told_ = true;
    if (progress_) {
      progress_->note(
          fmt::format("{} layers kept one more tensor in this step: a |weight| is too small to recover the "
                      "normalized input from the output (log.jsonl counts them as abn_fallbacks)",
                      count));
    }
  }

  void evaluate_if_due() {
    if (validation_ == nullptr || options_.evaluate_every == 0 || step_ == 0 || stopped()) return;
    const bool epoch_due = step_ % batches_ == 0 && step_ / batches_ % options_.evaluate_every == 0;
    if (!epoch_due && step_ != last_step_) return;
    if (log_ && log_->evaluated_step() == step_) return;
    auto record = evaluate_unless([this] { return stopped(); }, model_, *validation_, options_.loss, format_);
    if (!record) return;
    record->step = step_;
    record->epoch = step_ / batches_;
    if (log_) log_->write(*record);
    if (progress_) progress_->evaluation(*record);
    outcome_.evaluations.push_back(std::move(*record));
  }

  nn::Model& model_;
  data::Loader& loader_;
  data::Loader* validation_;
  const TrainerOptions& options_;
  const std::atomic<int>& stop_signal_;
  const TensorFormat format_;
  const LossOptions loss_options_;
  torch::optim::SGD optimizer_;
  MixedPrecision mixed_;
  const int64_t batches_;         // per epoch
  const int64_t schedule_steps_;  // of all epochs
  const int64_t last_step_;       // where this run ends
  const int64_t fallbacks_before_;

  int64_t step_ = 0;         // steps done
  int64_t saved_step_ = -1;  // of the checkpoint on disk; -1: none of this run's
  std::optional<RunLog> log_;
  std::optional<Progress> progress_;
  TrainingOutcome outcome_;
  int64_t interval_images_ = 0;
  double interval_seconds_ = 0, run_seconds_ = 0;
  bool fallback_told_ = false;
  std::string resumed_otherwise_;  // what to tell of a checkpoint of another precision
};

}  // namespace

TrainingOutcome train(nn::Model& model, data::Loader& train, data::Loader* validation,
                      const TrainerOptions& options, const std::atomic<int>& stop_signal) {
  check(options, train);
  return Run(model, train, validation, options, stop_signal).run();
}

}  // namespace palimpsest::train
