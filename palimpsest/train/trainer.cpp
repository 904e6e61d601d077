#include "palimpsest/train/trainer.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/timeline.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/train/best.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/clip.h"
#include "palimpsest/train/common/bad_images.h"
#include "palimpsest/train/common/batch_feed.h"
#include "palimpsest/train/common/check_options.h"
#include "palimpsest/train/common/divergence.h"
#include "palimpsest/train/common/label_error.h"
#include "palimpsest/train/common/late_numbers.h"
#include "palimpsest/train/common/ranks.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/common/resuming.h"
#include "palimpsest/train/common/run_checkpoints.h"
#include "palimpsest/train/ema.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/frozen.h"
#include "palimpsest/train/report/details.h"
#include "palimpsest/train/report/run_reports.h"
#include "palimpsest/train/rethrow.h"
#include "palimpsest/train/step.h"
#include "palimpsest/train/step_loss.h"
#include "palimpsest/train/tensor_format.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

namespace palimpsest::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Returns the module in training mode, with parameters of the format: the optimizer's state has their type.
torch::nn::Module& prepared(torch::nn::Module& module, const TensorFormat& format) {
  format.convert(module);
  module.train();
  return module;
}

/// One call of train(). Between two steps the state of a run is `steps_done_`, the module, the optimizer, the
/// loss scale and libtorch's generator; a checkpoint holds exactly these.
class Run {
 public:
  Run(const Network& network, BatchSource& source, BatchSource* validation, const TrainerOptions& options,
      const std::atomic<int>& stop_signal)
      : network_(network),
        module_(network.module()),
        validation_(validation),
        options_(options),
        stop_signal_(stop_signal),
        group_(group_of(options)),
        format_(TensorFormat::parse(options.dtype, options.channels_last, options.precision, options.device)),
        frozen_(prepared(module_, format_), {options.freeze, options.freeze_norm}),
        optimizer_(make_optimizer(module_, options.optimizer)),
        feed_(source, format_.device),
        step_(module_, {format_.precision, parse_loss_scale(options.loss_scale)}),
        batches_(source.batches()),
        schedule_steps_(options.epochs * batches_),
        last_step_(options.max_steps > 0 ? std::min(options.max_steps, schedule_steps_) : schedule_steps_),
        reads_late_(options.reads_late.value_or(!format_.device.is_cpu()) && !group_),
        fallbacks_before_(ops::abn_fallback_stats().layers),
        checkpoints_(options, source, group_,
                     {module_, *optimizer_.optimizer, step_, average_, best_, parallel_}),
        reports_(options, group_, last_step_, checkpoints_.writes(), outcome_) {
    if (options.keep_best != "none") best_.emplace(options.keep_best, options.patience);
  }

  TrainingOutcome run() {
    try {
      return run_to_the_end();
    } catch (const std::exception& error) {
      log_end(error.what());
      throw;
    }
  }

 private:
  TrainingOutcome run_to_the_end() {
    begin();
    if (group_) agree_on_signal();
    evaluate_if_due();  // a run may have been ended before its evaluation
    bool positioned = false;
    while (steps_done_ < last_step_ && !stopped() && !is_exhausted()) {
      if (!positioned || steps_done_ % batches_ == 0)
        feed_.start_epoch(steps_done_ / batches_, steps_done_ % batches_);
      positioned = true;
      take_step();
      // The checkpoint comes before the evaluation: a run that is killed during the evaluation loses nothing
      // else, and the resumed run repeats it.
      if (steps_done_ % batches_ == 0 || steps_done_ == last_step_ ||
          (options_.checkpoint_every > 0 && steps_done_ % options_.checkpoint_every == 0))
        save();
      evaluate_if_due();
    }
    finish_pending();
    if (checkpoints_.saved_step() != steps_done_) save();  // stopped between two checkpoints
    // A launcher ends all ranks as soon as one has left with the status of a signal: first, rank 0 must have
    // saved.
    if (group_) group_->barrier("the end of the training");
    if (bad_images_.count() > 0) reports_.note(bad_images_.summary());
    outcome_.bad_images = bad_images_.count();
    if (best_) tell_end_of_search();
    if (average_) outcome_.averages = average_->tensors();
    outcome_.signal = signal();
    outcome_.last_step = steps_done_;
    return std::move(outcome_);
  }

  /// Notes in the log why the run failed, unless it failed before its first step: an empty log says that nothing is lost.
  /// Does not throw: the failure itself is on its way.
  void log_end(const char* reason) noexcept {
    if (steps_done_ == 0) return;
    try {
      reports_.add(EndRecord{steps_done_, steps_done_ / batches_, as_utf8(reason)});
    } catch (const std::exception& second) {
      std::cerr << "palimpsest: the log does not have the end of the run: " << second.what() << std::endl;
    }
  }

  /// The signal that stops the run. With a group it is the one that all ranks know of.
  int signal() const { return group_ ? agreed_signal_ : stop_signal_.load(); }
  bool stopped() const { return signal() != 0; }
  bool is_exhausted() const { return best_ && best_->is_exhausted(); }
  void agree_on_signal() {
    agreed_signal_ = static_cast<int>(group_->max(stop_signal_.load(), "the signal to stop"));
  }
  int rank() const { return group_ ? group_->rank() : 0; }
  int ranks() const { return group_ ? group_->size() : 1; }

  void begin() {
    RunState state;
    if (options_.resume) {
      state = resume();
    } else {
      checkpoints_.begin();
    }
    if (group_) {
      parallel_.emplace(*group_, module_,
                        distributed::DataParallelOptions{.compression = options_.gradient_compression});
      step_.synchronize(*group_, *parallel_);
    }
    begin_average(state.averages);
    reports_.begin_progress();
    if (options_.resume)
      reports_.note(steps_done_ <= last_step_
                        ? fmt::format("resumed at step {} of {}", steps_done_, last_step_)
                        : fmt::format("the checkpoint is at step {}, beyond the end of this run at step {}",
                                      steps_done_, last_step_));
    for (const std::string& note : notes_) reports_.note(note);
    if (!options_.output.empty()) begin_files();
    if (group_) evaluated_step_ = group_->max(evaluated_step_, "the step of the last evaluation");
    if (best_ && options_.resume) {
      resume_best(state.best);
      if (const std::string lost = checkpoints_.lost_best(); !lost.empty()) reports_.note(lost);
    }
  }

  /// Begins the average of all ranks, after they have the same parameters.
  void begin_average(const nn::StateDict& saved) {
    if (options_.ema_decay == 0) return;
    average_.emplace(module_, options_.ema_decay);
    if (!saved.empty()) nn::load_state_dict(average_->tensors(), saved);
    if (!group_) return;
    std::vector<at::Tensor> tensors;
    for (const auto& [name, tensor] : average_->tensors()) tensors.push_back(tensor);
    group_->broadcast(tensors, "the averages");
  }

  /// Whether the evaluation after `steps_done_` may be the best one: any that a run without --max-steps has
  /// too, so that a run in parts finds the same.
  bool is_compared() const { return is_evaluation_epoch() || steps_done_ == schedule_steps_; }
  bool is_evaluation_epoch() const {
    return options_.evaluate_every > 0 && steps_done_ % batches_ == 0 &&
           steps_done_ / batches_ % options_.evaluate_every == 0;
  }

  /// The checkpoint was written before the evaluation of its step, which the log holds if it was completed. The
  /// log says whether it was compared: this run may have another schedule.
  void resume_best(const std::optional<BestState>& saved) {
    if (saved) {
      best_->resume(*saved);
      if (checkpoints_.writes() && evaluated_step_ == steps_done_ && reports_.last_evaluation()->best)
        best_->add(*reports_.last_evaluation());
    }
    if (!group_) return;
    BestState state = best_->state();
    share_best(*group_, state);
    best_->resume(state);
  }

  void begin_files() {
    if (!options_.resume) checkpoints_.save_first();
    evaluated_step_ = reports_.begin_files(steps_done_);
  }

  RunState resume() {
    RunState state = checkpoints_.resume();
    steps_done_ = state.step;
    step_.resume(state.step, state.scaling);
    notes_ = notes_on_resuming(state, options_, step_, rank(), ranks());
    return state;
  }

  /// Saves a state whose loss is known to be finite.
  void save() {
    finish_pending();
    checkpoints_.save(steps_done_);
  }

  /// A step that is queued on the device. What it computed is not known yet if `numbers` has a value.
  struct PendingStep {
    FinishedStep step;
    bool stepped = true;                 // the update was not skipped
    int64_t classes = 0, ignore_id = 0;  // of the labels
    bool weighed = true;                 // false: nothing counts in the loss
    std::optional<LateNumbers> numbers = {};
    std::vector<data::BadExample> bad = {};  // of this rank
    int64_t bad_images = 0;                  // of all ranks
  };

  /// Takes the next step. Where numbers are read late, the host then waits for the step before, while the
  /// device has this one to do.
  void take_step() {
    const auto start = Clock::now();
    PendingStep pending;
    StepRecord& record = pending.step.record;
    record.step = steps_done_ + 1;
    record.epoch = steps_done_ / batches_ + 1;
    std::string doing = fmt::format("step {}", record.step);
    try {
      std::optional<data::Batch> batch = feed_.next();
      require(batch.has_value(),
              fmt::format("an epoch needs {} batches, got only {}", batches_, steps_done_ % batches_));
      record.data_seconds = seconds_since(start);
      pending.bad = feed_.take_bad();
      pending.bad_images = static_cast<int64_t>(pending.bad.size());
      pending.step.images = batch->images.size(0);
      doing += " (" + describe(batch->images) + ")";
      update(std::move(*batch), pending);
    } catch (...) {
      finish_pending();  // the step before was complete; if it had diverged, this tells why
      rethrow_explained(doing);
    }
    ++steps_done_;
    ++steps_taken_;
    if (steps_done_ % batches_ != 0 && steps_done_ < last_step_) feed_.prepare();
    finish_pending();
    pending.step.seconds = seconds_since(start);
    record.seconds = pending.step.seconds - record.data_seconds;
    record.abn_fallbacks = ops::abn_fallback_stats().layers - fallbacks_before_;
    const bool ends_now = !reads_late_ || pending.step.observation;
    pending_ = std::move(pending);
    if (ends_now) finish_pending();
    if (stop_seen_) agree_on_signal();
  }

  /// Ends the step whose numbers are not read yet, if there is one. Throws Error(kDiverged) if its loss is
  /// not finite.
  void finish_pending() {
    if (!pending_) return;
    PendingStep pending = *std::exchange(pending_, std::nullopt);
    if (pending.numbers) {
      const auto start = Clock::now();
      take_numbers(pending, pending.numbers->read());
      StepRecord& record = pending.step.record;
      if (record.step == steps_done_) {  // no later step has this time
        record.seconds += seconds_since(start);
        pending.step.seconds += seconds_since(start);
      }
      if (pending.stepped && !std::isfinite(record.loss)) throw divergence(record, checkpoints_.remaining());
    }
    if (pending.bad_images > 0)
      for (const std::string& reason : reasons_of_all(pending.bad, group_))
        if (bad_images_.add(reason))
          pending.step.bad.push_back({reason, bad_images_.count() <= static_cast<int64_t>(kNamedBadImages)});
    if (!pending.weighed && !std::exchange(told_of_no_weight_, true))
      reports_.note(
          fmt::format("step {}: nothing in its batch counts in the loss, which is 0: no label is a class, or "
                      "class weights or the bootstrap probability leave out all; this is said once",
                      pending.step.record.step));
    reports_.add(std::move(pending.step));
  }

  /// numbers: the loss, a wrong label or NaN, the weight of what counts, and the norm of the gradients if they
  /// are clipped.
  static void take_numbers(PendingStep& pending, const std::vector<double>& numbers) {
    refuse_wrong_label(numbers.at(1), pending.classes, pending.ignore_id);
    StepRecord& record = pending.step.record;
    record.loss = numbers[0];
    if (std::isnan(record.loss)) record.loss = std::abs(record.loss);  // "-nan" says nothing more
    pending.weighed = numbers[2] != 0;
    if (numbers.size() > 3) record.gradient_norm = numbers[3];
  }

  void update(data::Batch batch, PendingStep& pending) {
    StepRecord& record = pending.step.record;
    record.lr =
        learning_rate(options_.schedule, options_.optimizer.lr, steps_done_, schedule_steps_, batches_);
    optimizer_.set_learning_rate(record.lr);
    format_.convert(batch);
    const LossOptions loss_options = loss_for(batch.targets, options_.loss);
    pending.ignore_id = loss_options.ignore_id;
    std::optional<memory::Meter> meter;
    if (!format_.device.is_cpu() || memory::counting_allocator_installed()) meter.emplace(format_.device);

    record.loss_scale = step_.loss_scale();
    StepLoss loss(network_, std::move(batch), loss_options, format_.precision, options_.accumulate, group_);
    Step::RunOptions run;
    // A skipped step shows nothing: the one after it is observed in its place.
    run.observe =
        options_.histogram_every > 0 && steps_done_ % options_.histogram_every <= step_.skipped_in_a_row();
    auto timeline = meter && reports_.wants_timeline(steps_taken_) ? start_timeline() : nullptr;
    bool forward_done = false;
    run.entering = [&](Step::Phase phase) {
      if (timeline) timeline->mark(Step::name_of(phase));
      if (phase != Step::Phase::kBackward) return;
      if (meter && !std::exchange(forward_done, true)) meter->forward_done();
      loss.release_batch();
    };
    std::vector<at::Tensor> late;  // the numbers that stay on the device
    run.change_gradients = [&] {
      if (loss.has_gradient_factor()) scale_gradients(*optimizer_.optimizer, loss.gradient_factor());
      if (options_.optimizer.clip_norm == 0) return;
      if (reads_late_)
        late.push_back(clip_gradients_on_device(*optimizer_.optimizer, options_.optimizer.clip_norm));
      else
        record.gradient_norm = clip_gradients(*optimizer_.optimizer, options_.optimizer.clip_norm);
    };
    const auto loss_of_part = [&](int64_t part) {
      at::Tensor value = loss.part(part, [&]() -> std::vector<double> {
        return {stop_signal_.load() != 0 ? 1.0 : 0.0, static_cast<double>(pending.bad_images)};
      });
      if (part + 1 < options_.accumulate) return value;
      pending.classes = loss.classes();
      pending.step.images = loss.images();
      if (group_) {
        stop_seen_ = loss.sums().at(0) > 0;
        pending.bad_images = static_cast<int64_t>(loss.sums().at(1));
      }
      if (reads_late_) {
        late = {loss.mean(), loss.wrong_label(), loss.weight()};
        return value;
      }
      take_numbers(pending, {loss.mean().item<double>(), loss.wrong_label().item<double>(),
                             loss.weight().item<double>()});
      if (!std::isfinite(record.loss) && !step_.scales())
        throw divergence(record, checkpoints_.remaining());  // before it reaches a parameter
      return value;
    };
    pending.stepped = step_.run_parts(*optimizer_.optimizer, options_.accumulate, loss_of_part, run);
    if (reads_late_) pending.numbers.emplace(late);
    if (pending.stepped && average_) average_->update(record.step);
    if (pending.stepped && !reads_late_ && !std::isfinite(record.loss))
      throw divergence(record, checkpoints_.remaining());
    if (step_.is_hopeless()) {
      finish_pending();
      if (pending.numbers) take_numbers(pending, pending.numbers->read());
      throw overflow(options_, record, checkpoints_.remaining());
    }
    record.skipped_steps = step_.skipped_steps();
    if (run.observe && pending.stepped) pending.step.observation = step_.observation();
    if (timeline) {
      timeline->stop();
      reports_.add(StepTimeline{steps_done_ + 1, timeline->samples(), timeline->marks()});
    }

    if (!meter) return;
    record.kept_bytes = meter->kept_bytes();
    record.peak_bytes = meter->peak_bytes();
    record.current_bytes = meter->current_bytes();
  }

  /// Returns null if another Timeline or a profiler records already.
  std::unique_ptr<memory::Timeline> start_timeline() const {
    try {
      return std::make_unique<memory::Timeline>(format_.device);
    } catch (const std::logic_error&) {
      return nullptr;
    }
  }

  void evaluate_if_due() {
    if (validation_ == nullptr || options_.evaluate_every == 0 || steps_done_ == 0 || stopped()) return;
    if (!is_evaluation_epoch() && steps_done_ != last_step_) return;
    if (evaluated_step_ == steps_done_) return;
    finish_pending();
    PictureSampler sampler(options_.report, std::max<int64_t>(1, validation_->images() / ranks()),
                           options_.loss.ignore_id);
    auto record = evaluate(sampler);
    if (!record) {
      if (group_) agree_on_signal();
      return;
    }
    evaluated_step_ = steps_done_;
    record->step = steps_done_;
    record->epoch = steps_done_ / batches_;
    if (!std::isfinite(record->loss) && (record->weighed || !has_metrics(*record)))
      checkpoints_.mark_bad_evaluation(steps_done_);
    if (best_ && is_compared()) record->best = best_->add(*record);
    // Before the log, which comes last: a run that is killed here evaluates again when it is resumed.
    if (record->best.value_or(false)) checkpoints_.save_best(steps_done_);
    if (const std::string doubt = doubt_of(*record); !doubt.empty())
      reports_.note(fmt::format("step {}: {}", steps_done_, doubt));
    EvaluationDetails details = take_details(*record, sampler.take(), options_.report);
    reports_.add(std::move(*record), std::move(details));
  }

  /// Evaluates the network that is saved, or its average if there is one. Returns nothing if a signal came.
  std::optional<EvaluationRecord> evaluate(PictureSampler& sampler) {
    std::optional<Average::Exchange> exchanged;
    if (average_) exchanged.emplace(*average_);
    if (group_ && (average_ || checkpoints_.saved_step() != steps_done_)) parallel_->broadcast_buffers();
    return evaluate_unless(
        [this] { return stop_signal_.load() != 0; }, network_, *validation_, options_.loss, format_, group_,
        [&](const data::Batch& batch, const at::Tensor& logits) { sampler.add(batch, logits); },
        options_.reads_late);
  }

  /// Tells how the search for the best evaluation ended, if that is not obvious.
  void tell_end_of_search() {
    if (is_exhausted() && steps_done_ < last_step_) {
      outcome_.stopped_early = true;
      reports_.add(EndRecord{steps_done_, steps_done_ / batches_, best_->text()});
      reports_.note(fmt::format("stopped early at step {}: {}", steps_done_, best_->text()));
    } else if (!best_->state().value && !is_compared() && steps_done_ == last_step_) {
      reports_.note(
          fmt::format("there is no {} yet: the evaluation where --max-steps ends a run is not one of "
                      "the schedule, and is not compared",
                      kBestFile));
    }
  }

  const Network network_;
  torch::nn::Module& module_;
  BatchSource* validation_;
  const TrainerOptions& options_;
  const std::atomic<int>& stop_signal_;
  distributed::Group* const group_;  // null: this process alone
  const TensorFormat format_;
  const Frozen frozen_;
  const GroupedOptimizer optimizer_;
  BatchFeed feed_;
  Step step_;
  std::optional<distributed::DataParallel> parallel_;  // with a group
  std::optional<Average> average_;                     // with ema_decay
  std::optional<Best> best_;                           // with keep_best
  const int64_t batches_;                              // per epoch
  const int64_t schedule_steps_;                       // of all epochs
  const int64_t last_step_;                            // where this run ends
  const bool reads_late_;                              // the numbers of a step, while the next one runs
  const int64_t fallbacks_before_;

  int64_t steps_done_ = 0;
  int64_t evaluated_step_ = -1;  // of the last evaluation, which the log holds
  int64_t steps_taken_ = 0;      // in this run
  bool told_of_no_weight_ = false;
  bool stop_seen_ = false;  // a rank had a signal in this step
  int agreed_signal_ = 0;   // of all ranks
  BadImages bad_images_;    // since this run began or was resumed
  TrainingOutcome outcome_;
  RunCheckpoints checkpoints_;
  RunReports reports_;
  std::optional<PendingStep> pending_;
  std::vector<std::string> notes_;  // of a resumed run
};

}  // namespace

TrainingOutcome train(const Network& network, BatchSource& train, BatchSource* validation,
                      const TrainerOptions& options, const std::atomic<int>& stop_signal) {
  check_options(options, train, validation);
  return Run(network, train, validation, options, stop_signal).run();
}

TrainingOutcome train(const Network& network, data::Loader& train, data::Loader* validation,
                      const TrainerOptions& options, const std::atomic<int>& stop_signal) {
  require(train.batches() > 0, fmt::format("an epoch needs at least one whole batch, got {} training images "
                                           "for a batch of {}: use a smaller batch",
                                           train.dataset().size(), train.options().batch_size));
  LoaderBatches train_batches(train);
  std::optional<LoaderBatches> validation_batches;
  if (validation != nullptr) validation_batches.emplace(*validation);
  return palimpsest::train::train(network, train_batches, validation_batches ? &*validation_batches : nullptr,
                                  options, stop_signal);
}

}  // namespace palimpsest::train
