#include "palimpsest/train/trainer.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/class_colors.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/timeline.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/train/best.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/clip.h"
#include "palimpsest/train/common/bad_images.h"
#include "palimpsest/train/common/check_options.h"
#include "palimpsest/train/common/divergence.h"
#include "palimpsest/train/common/ranks.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/ema.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/frozen.h"
#include "palimpsest/train/report/details.h"
#include "palimpsest/train/report/exponent_chart.h"
#include "palimpsest/train/report/progress.h"
#include "palimpsest/train/report/run_files.h"
#include "palimpsest/train/report/run_log.h"
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

/// The name of the order in messages, where a checkpoint of an older program names none.
const std::string kFirstOrder = "first_example_stream";

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
        source_(source),
        validation_(validation),
        options_(options),
        stop_signal_(stop_signal),
        group_(group_of(options)),
        format_(TensorFormat::parse(options.dtype, options.channels_last, options.precision, options.device)),
        frozen_(prepared(module_, format_), {options.freeze, options.freeze_norm}),
        optimizer_(make_optimizer(module_, options.optimizer)),
        step_(module_, {format_.precision, parse_loss_scale(options.loss_scale)}),
        batches_(source.batches()),
        schedule_steps_(options.epochs * batches_),
        last_step_(options.max_steps > 0 ? std::min(options.max_steps, schedule_steps_) : schedule_steps_),
        fallbacks_before_(ops::abn_fallback_stats().layers) {
    if (options.keep_best != "none") best_.emplace(options.keep_best, options.patience);
  }

  TrainingOutcome run() {
    begin();
    if (group_) agree_on_signal();
    evaluate_if_due();  // a run may have been ended before its evaluation
    bool positioned = false;
    while (steps_done_ < last_step_ && !stopped() && !is_exhausted()) {
      if (!positioned || steps_done_ % batches_ == 0)
        source_.start_epoch(steps_done_ / batches_, steps_done_ % batches_);
      positioned = true;
      take_step();
      // The checkpoint comes before the evaluation: a run that is killed during the evaluation loses nothing
      // else, and the resumed run repeats it.
      if (steps_done_ % batches_ == 0 || steps_done_ == last_step_ ||
          (options_.checkpoint_every > 0 && steps_done_ % options_.checkpoint_every == 0))
        save();
      evaluate_if_due();
    }
    if (saved_step_ != steps_done_) save();  // stopped between two checkpoints
    // A launcher ends all ranks as soon as one has left with the status of a signal: first, rank 0 must have
    // saved.
    if (group_) group_->barrier("the end of the training");
    if (bad_images_.count() > 0 && progress_) progress_->note(bad_images_.summary());
    outcome_.bad_images = bad_images_.count();
    if (best_) tell_end_of_search();
    if (average_) outcome_.averages = average_->tensors();
    outcome_.signal = signal();
    outcome_.last_step = steps_done_;
    return std::move(outcome_);
  }

 private:
  /// The signal that stops the run. With a group it is the one that all ranks know of.
  int signal() const { return group_ ? agreed_signal_ : stop_signal_.load(); }
  bool stopped() const { return signal() != 0; }
  bool is_exhausted() const { return best_ && best_->is_exhausted(); }
  void agree_on_signal() {
    agreed_signal_ = static_cast<int>(group_->max(stop_signal_.load(), "the signal to stop"));
  }
  int rank() const { return group_ ? group_->rank() : 0; }
  int ranks() const { return group_ ? group_->size() : 1; }
  bool writes() const { return !options_.output.empty() && rank() == 0; }
  std::filesystem::path checkpoint_path() const { return options_.output / kCheckpointFile; }

  void begin() {
    RunState state;
    if (options_.resume) {
      state = resume();
    } else {
      at::manual_seed(rank_seed(options_.seed, 0, rank()));
      if (writes()) data_identity_ = source_.identity();
    }
    if (group_) {
      parallel_.emplace(*group_, module_,
                        distributed::DataParallelOptions{.compression = options_.gradient_compression});
      step_.synchronize(*group_, *parallel_);
    }
    begin_average(state.averages);
    if (!options_.quiet && rank() == 0)
      progress_.emplace(std::cerr, stderr_columns(), last_step_, options_.epochs);
    if (progress_ && options_.resume)
      progress_->note(steps_done_ <= last_step_
                          ? fmt::format("resumed at step {} of {}", steps_done_, last_step_)
                          : fmt::format("the checkpoint is at step {}, beyond the end of this run at step {}",
                                        steps_done_, last_step_));
    for (const std::string& note : notes_)
      if (progress_) progress_->note(note);
    if (!options_.output.empty()) begin_files();
    if (group_) evaluated_step_ = group_->max(evaluated_step_, "the step of the last evaluation");
    if (best_ && options_.resume) resume_best(state.best);
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

  /// The checkpoint was written before the evaluation of its step, which the log holds if it was completed.
  void resume_best(const std::optional<BestState>& saved) {
    if (saved) {
      best_->resume(*saved);
      if (log_ && evaluated_step_ == steps_done_ && is_compared()) best_->add(*log_->last_evaluation());
    }
    if (!group_) return;
    BestState state = best_->state();
    share_best(*group_, state);
    best_->resume(state);
  }

  void begin_files() {
    // A checkpoint before the first step: an unwritable folder fails now and not after an epoch, and a run
    // that is killed early can be resumed. A kill may come between any two of these files. In an empty folder
    // config.toml comes first: it tells how to begin again. In the folder of an earlier run the checkpoint
    // comes first: from then on the folder holds this run, whose log has no step.
    if (!options_.resume) {
      std::error_code ignored;
      if (writes() && !std::filesystem::exists(checkpoint_path(), ignored)) write_config();
      save();
    }
    if (!writes()) return;
    log_.emplace(options_.output / kLogFile, steps_done_);
    if (!options_.resume) {
      std::error_code none;  // of an earlier run
      std::filesystem::remove(options_.output / kBestFile, none);
    }
    files_.emplace(options_.output, options_.tensorboard, steps_done_);
    evaluated_step_ = log_->evaluated_step();
  }

  RunState resume() {
    RunState state;
    if (rank() == 0) state = load();
    const auto ranks_before = [&] { return static_cast<int>(state.other_ranks.size()) + 1; };
    if (group_) {
      share_state(*group_, state);
      share_optimizer_state(*group_, *optimizer_.optimizer, module_);
      if (rank() > 0) at::manual_seed(rank_seed(options_.seed, state.step, rank()));
      if (rank() > 0 && rank() < ranks_before())
        set_generator_states(module_, state.other_ranks[static_cast<std::size_t>(rank() - 1)],
                             checkpoint_path().string());
    }
    steps_done_ = saved_step_ = state.step;
    step_.resume(state.step, state.scaling);
    if (rank() == 0 && state.precision != options_.precision)
      notes_.push_back(fmt::format(
          "the checkpoint of step {} was trained in {}, the run goes on in {}: parameters and momentum are "
          "{} in both{}",
          steps_done_, state.precision, options_.precision, options_.dtype,
          step_.scales() ? fmt::format(", the loss scale is {}", step_.loss_scale()) : ""));
    if (ranks_before() == ranks()) return state;
    notes_.push_back(fmt::format(
        "the checkpoint is of a run of {}, this one has {}: the order of the images goes "
        "on, the last bits of sums may differ{}",
        processes(ranks_before()), ranks(),
        ranks_before() < ranks()
            ? fmt::format(", and processes from number {} on draw new random numbers", ranks_before())
            : ""));
    return state;
  }

  static std::string processes(int count) {
    return fmt::format("{} process{}", count, count == 1 ? "" : "es");
  }

  /// Loads the checkpoint into this process.
  RunState load() {
    at::manual_seed(options_.seed);  // a checkpoint made on the CPU has no state for a GPU's generator
    const RunState state = load_checkpoint(checkpoint_path(), module_, *optimizer_.optimizer);
    const auto same = [&](const char* what, auto saved, auto now) {
      require(
          saved == now,
          fmt::format("{} was made with {} {}, this run has {}: the order of the data would not continue; "
                      "resume with the options of the run, or begin a new one",
                      checkpoint_path().string(), what, saved, now));
    };
    same("seed", state.seed, source_.seed());
    same("batch size", state.batch_size, source_.batch_size());
    same("batches per epoch", state.batches_per_epoch, batches_);
    same("order", state.order.empty() ? kFirstOrder : state.order,
         source_.order().empty() ? kFirstOrder : source_.order());
    data_identity_ = source_.identity();
    require_same_data(checkpoint_path(), state.data, data_identity_);
    return state;
  }

  void save() {
    if (options_.output.empty()) return;
    write_checkpoint(checkpoint_path());
    saved_step_ = steps_done_;
    if (writes() && !wrote_config_) write_config();
  }

  void write_checkpoint(const std::filesystem::path& path) {
    std::vector<GeneratorStates> other_ranks;
    if (group_) {
      parallel_->broadcast_buffers();
      other_ranks = gather_generator_states(*group_, module_);
    }
    if (!writes()) return;
    RunState state{
        steps_done_,        batches_,      source_.batch_size(), source_.seed(), options_.metadata,
        options_.precision, step_.state(), source_.order(),      data_identity_, std::move(other_ranks)};
    if (!options_.config.empty()) state.metadata["config"] = options_.config;
    if (average_) state.averages = average_->tensors();
    if (best_) state.best = best_->state();
    save_checkpoint(path, module_, *optimizer_.optimizer, state);
  }

  void write_config() {
    wrote_config_ = true;
    const std::string& text = options_.config_file.empty() ? options_.config : options_.config_file;
    if (!text.empty()) io::write_file_atomically(options_.output / kConfigFile, text);
  }

  void take_step() {
    const auto start = Clock::now();
    StepRecord record;
    record.step = steps_done_ + 1;
    record.epoch = steps_done_ / batches_ + 1;
    std::string doing = fmt::format("step {}", record.step);
    try {
      std::optional<data::Batch> batch = source_.next();
      require(batch.has_value(),
              fmt::format("an epoch needs {} batches, got only {}", batches_, steps_done_ % batches_));
      record.data_seconds = seconds_since(start);
      bad_ = source_.take_bad();
      step_bad_ = static_cast<int64_t>(bad_.size());
      step_images_ = batch->images.size(0);
      doing += " (" + describe(batch->images) + ")";
      update(*batch, record);
    } catch (...) {
      rethrow_explained(doing);
    }
    record.seconds = seconds_since(start) - record.data_seconds;
    ++steps_done_;
    finish(record, seconds_since(start));
    if (stop_seen_) agree_on_signal();
  }

  void update(data::Batch& batch, StepRecord& record) {
    record.lr =
        learning_rate(options_.schedule, options_.optimizer.lr, steps_done_, schedule_steps_, batches_);
    optimizer_.set_learning_rate(record.lr);
    format_.convert(batch);
    const LossOptions loss_options = loss_for(batch.targets, options_.loss);
    std::optional<memory::Meter> meter;
    if (!format_.device.is_cpu() || memory::counting_allocator_installed()) meter.emplace(format_.device);

    record.loss_scale = step_.loss_scale();
    StepLoss loss(network_, batch, loss_options, format_.precision, options_.accumulate, group_);
    Step::RunOptions run;
    run.observe = options_.histogram_every > 0 && steps_done_ % options_.histogram_every == 0;
    auto timeline = meter && files_ && files_->wants_timeline(static_cast<int64_t>(outcome_.steps.size()))
                        ? start_timeline()
                        : nullptr;
    bool forward_done = false;
    run.entering = [&](Step::Phase phase) {
      if (timeline) timeline->mark(Step::name_of(phase));
      if (meter && phase == Step::Phase::kBackward && !std::exchange(forward_done, true))
        meter->forward_done();
    };
    run.change_gradients = [&] {
      if (loss.gradient_factor() != 1) scale_gradients(*optimizer_.optimizer, loss.gradient_factor());
      if (options_.optimizer.clip_norm > 0)
        record.gradient_norm = clip_gradients(*optimizer_.optimizer, options_.optimizer.clip_norm);
    };
    const auto loss_of_part = [&](int64_t part) {
      at::Tensor value = loss.part(part, [this]() -> std::vector<double> {
        return {stop_signal_.load() != 0 ? 1.0 : 0.0, static_cast<double>(step_bad_)};
      });
      if (part + 1 < options_.accumulate) return value;
      record.loss = loss.mean();
      step_images_ = loss.images();
      if (group_) {
        stop_seen_ = loss.sums().at(0) > 0;
        step_bad_ = static_cast<int64_t>(loss.sums().at(1));
      }
      if (std::isnan(record.loss)) record.loss = std::abs(record.loss);  // "-nan" says nothing more
      if (!std::isfinite(record.loss) && !step_.scales())
        throw divergence(record, remaining_checkpoint());  // before it reaches a parameter
      return value;
    };
    stepped_ = step_.run_parts(*optimizer_.optimizer, options_.accumulate, loss_of_part, run);
    if (stepped_ && average_) average_->update(record.step);
    if (stepped_ && !std::isfinite(record.loss)) throw divergence(record, remaining_checkpoint());
    if (step_.is_hopeless()) throw overflow(options_, record, remaining_checkpoint());
    record.skipped_steps = step_.skipped_steps();
    if (timeline) {
      timeline->stop();
      files_->write(StepTimeline{steps_done_ + 1, timeline->samples(), timeline->marks()});
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

  /// Returns the part of an error message that names the last checkpoint.
  std::string remaining_checkpoint() const {
    if (saved_step_ <= 0) return "";
    return fmt::format("; {} of step {} stays{}", checkpoint_path().string(), saved_step_,
                       bad_evaluation_ == saved_step_ ? ", but its evaluation was not finite already" : "");
  }

  /// Updates pace, log and progress after a step.
  void finish(StepRecord record, double seconds) {
    interval_images_ += step_images_;
    interval_seconds_ += seconds;
    run_seconds_ += seconds;
    record.images_per_second = static_cast<double>(interval_images_) / std::max(interval_seconds_, 1e-9);
    outcome_.steps.push_back(record);
    const auto steps_done = static_cast<double>(outcome_.steps.size());
    record.eta_seconds = run_seconds_ / steps_done * static_cast<double>(last_step_ - steps_done_);
    record.abn_fallbacks = ops::abn_fallback_stats().layers - fallbacks_before_;
    outcome_.steps.back() = record;

    const bool logged =
        steps_done_ == 1 || steps_done_ % options_.log_every == 0 || steps_done_ == last_step_;
    if (logged && log_) log_->write(record);
    if (files_) files_->write(record, logged);
    if (progress_) progress_->step(record, logged);
    if (options_.histogram_every > 0 && stepped_ && step_.observation()) show(*step_.observation());
    if (record.abn_fallbacks > 0 && !fallback_told_) tell_fallback(record.abn_fallbacks);
    if (step_bad_ > 0) tell_bad();
    if (logged) interval_images_ = 0, interval_seconds_ = 0;
  }

  void show(const Step::Observation& seen) {
    const ExponentRecord record{steps_done_, seen.activations, seen.weights, seen.recommended_scale()};
    outcome_.exponents = record;
    if (log_) log_->write(record);
    if (files_) files_->write(record);
    if (writes()) io::write_file_atomically(options_.output / "exponents.svg", to_svg(record));
    if (!progress_) return;
    const auto tell = [&](const char* what, const amp::ExponentHistogram& h) {
      const std::string text = h.text();  // only its first line is shown: log and chart have the bars
      if (h.values() > 0)
        progress_->note(fmt::format("{} of step {}: {}", what, steps_done_, text.substr(0, text.find('\n'))));
    };
    tell("weights", seen.weights);
    tell("activations", seen.activations);
  }

  /// Names the images that could not be read in this step, on any rank, unless an earlier step had them.
  void tell_bad() {
    for (const std::string& reason : reasons_of_all(bad_, group_)) {
      if (!bad_images_.add(reason)) continue;
      if (log_) log_->write(BadImageRecord{steps_done_, reason});
      if (progress_ && bad_images_.count() <= static_cast<int64_t>(kNamedBadImages))
        progress_->note("another image takes the place of one that cannot be read: " + reason);
    }
  }

  void tell_fallback(int64_t count) {
    fallback_told_ = true;
    if (progress_) {
      progress_->note(fmt::format(
          "{} layers saved one more tensor for backward in this step: a |weight| is too small to recover "
          "the normalized input from the output (log.jsonl counts them as abn_fallbacks)",
          count));
    }
  }

  void evaluate_if_due() {
    if (validation_ == nullptr || options_.evaluate_every == 0 || steps_done_ == 0 || stopped()) return;
    if (!is_evaluation_epoch() && steps_done_ != last_step_) return;
    if (evaluated_step_ == steps_done_) return;
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
    if (!std::isfinite(record->loss)) bad_evaluation_ = steps_done_;
    if (best_ && is_compared()) record->best = best_->add(*record);
    // Before the log, which comes last: a run that is killed here evaluates again when it is resumed.
    if (record->best.value_or(false) && !options_.output.empty())
      write_checkpoint(options_.output / kBestFile);
    outcome_.details = details_of(*record, sampler.take());
    if (files_) files_->write(*record, *outcome_.details);
    if (log_) log_->write(*record);
    if (progress_) progress_->evaluation(*record);
    outcome_.evaluations.push_back(std::move(*record));
  }

  /// Evaluates the network that is saved, or its average if there is one. Returns nothing if a signal came.
  std::optional<EvaluationRecord> evaluate(PictureSampler& sampler) {
    std::optional<Average::Exchange> exchanged;
    if (average_) exchanged.emplace(*average_);
    if (group_ && (average_ || saved_step_ != steps_done_)) parallel_->broadcast_buffers();
    return evaluate_unless(
        [this] { return stop_signal_.load() != 0; }, network_, *validation_, options_.loss, format_, group_,
        [&](const data::Batch& batch, const at::Tensor& logits) { sampler.add(batch, logits); });
  }

  /// Tells how the search for the best evaluation ended, if that is not obvious.
  void tell_end_of_search() {
    if (is_exhausted() && steps_done_ < last_step_) {
      outcome_.stopped_early = true;
      if (log_) log_->write(EndRecord{steps_done_, steps_done_ / batches_, best_->text()});
      if (progress_) progress_->note(fmt::format("stopped early at step {}: {}", steps_done_, best_->text()));
    } else if (!best_->state().value && !is_compared() && steps_done_ == last_step_ && progress_) {
      progress_->note(
          fmt::format("there is no {} yet: the evaluation where --max-steps ends a run is not one of "
                      "the schedule, and is not compared",
                      kBestFile));
    }
  }

  /// Moves the confusion matrix out of the record: a thousand records would hold a thousand of them.
  EvaluationDetails details_of(EvaluationRecord& record, std::vector<EvaluationPicture> pictures) const {
    EvaluationDetails details{record.step,
                              record.epoch,
                              record.segmentation,
                              options_.report.class_names,
                              options_.report.class_colors,
                              {},
                              std::move(pictures)};
    const auto counts = std::exchange(record.confusion, {});
    const auto classes = counts.empty() ? static_cast<int64_t>(details.class_names.size())
                                        : std::llround(std::sqrt(static_cast<double>(counts.size())));
    details.class_names.resize(static_cast<size_t>(classes));
    for (size_t i = options_.report.class_names.size(); i < details.class_names.size(); ++i)
      details.class_names[i] = fmt::format("class {}", i);
    if (!details.class_colors.defined() || details.class_colors.size(0) != classes)
      details.class_colors = data::class_colors(classes);
    if (!counts.empty()) details.confusion = at::tensor(counts, at::kLong).view({classes, classes});
    return details;
  }

  const Network network_;
  torch::nn::Module& module_;
  BatchSource& source_;
  BatchSource* validation_;
  const TrainerOptions& options_;
  const std::atomic<int>& stop_signal_;
  distributed::Group* const group_;  // null: this process alone
  const TensorFormat format_;
  const Frozen frozen_;
  const GroupedOptimizer optimizer_;
  Step step_;
  std::optional<distributed::DataParallel> parallel_;  // with a group
  std::optional<Average> average_;                     // with ema_decay
  std::optional<Best> best_;                           // with keep_best
  const int64_t batches_;                              // per epoch
  const int64_t schedule_steps_;                       // of all epochs
  const int64_t last_step_;                            // where this run ends
  const int64_t fallbacks_before_;

  int64_t steps_done_ = 0;
  int64_t saved_step_ = -1;            // of the checkpoint on disk; -1: this run saved none
  int64_t bad_evaluation_ = -1;        // step of the last evaluation whose loss was not finite
  int64_t evaluated_step_ = -1;        // of the last evaluation, which the log holds
  bool stepped_ = false;               // the last step was not skipped
  int64_t step_images_ = 0;            // of this step, of all ranks
  std::vector<data::BadExample> bad_;  // of this step, of this rank
  int64_t step_bad_ = 0;               // of this step, of all ranks
  BadImages bad_images_;               // since this run began or was resumed
  bool stop_seen_ = false;             // a rank had a signal in this step
  int agreed_signal_ = 0;              // of all ranks
  bool wrote_config_ = false;
  std::string data_identity_;
  std::optional<RunLog> log_;
  std::optional<RunFiles> files_;  // of the rank that writes
  std::optional<Progress> progress_;
  TrainingOutcome outcome_;
  int64_t interval_images_ = 0;
  double interval_seconds_ = 0, run_seconds_ = 0;
  bool fallback_told_ = false;
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
