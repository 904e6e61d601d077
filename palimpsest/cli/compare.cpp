#include "palimpsest/cli/compare.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/commands.h"
#include "palimpsest/cli/factories.h"
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/run_folder.h"
#include "palimpsest/cli/step_probe.h"
#include "palimpsest/cli/variants.h"
#include "palimpsest/cli/weights_file.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/folder_lock.h"
#include "palimpsest/memory/device_memory.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/device.h"
#include "palimpsest/train/report.h"
#include "palimpsest/train/trainer.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <fstream>
#include <iostream>
#include <optional>

namespace palimpsest::cli {
namespace {

constexpr int kWarmSteps = 2;     // the first step allocates the momentum
constexpr int kTimedRounds = 9;   // odd, so the median is one of them
constexpr int64_t kCropUnit = 8;  // pixels: the networks divide by 8 or more
constexpr int64_t kBytesPerMiB = 1 << 20;
constexpr double kMiB = kBytesPerMiB;

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string machine(const Options& o) {
  return fmt::format("{}, {} threads, libtorch {}{}", processor(), at::get_num_threads(), TORCH_VERSION,
                     o.run.device == "cpu" ? "" : ", computed on " + o.run.device);
}

std::vector<std::pair<std::string, std::string>> setup(const Options& o, const data::Batch& batch) {
  const auto& shape = batch.images.sizes();
  return {{"model",
           fmt::format("{}, {} classes, activation {}", o.model.name, o.model.classes, o.model.activation)},
          {"data", o.data.kind == "generated"
                       ? fmt::format("generated street scenes: {} for training, {} for validation",
                                     o.data.images, o.data.val_images)
                       : o.data.kind + " " + o.data.root},
          {"batch", fmt::format("{} of {} x {} pixels, {}, {}", counted(shape[0], "image"), shape[3],
                                shape[2], o.train.precision == "f32" ? o.train.dtype : o.train.precision,
                                o.train.channels_last ? "channels-last" : "NCHW")},
          {"training",
           fmt::format("{} epochs, {}, weight decay {}, {} schedule, seed {}", o.train.epochs,
                       o.optimizer.kind == "sgd"
                           ? fmt::format("SGD, lr {}, momentum {}", o.optimizer.lr, o.optimizer.momentum)
                           : fmt::format("AdamW, lr {}", o.optimizer.lr),
                       o.optimizer.weight_decay, o.schedule.kind, o.train.seed)},
          {"machine", machine(o)}};
}

/// One comparison in progress: options, data and the results so far.
class Comparison {
 public:
  Comparison(Options options, const std::string& title)
      : options_(std::move(options)),
        device_(train::parse_device(options_.run.device)),
        stop_signal_(poll_stop_signals()) {
    if (options_.output.folder.empty())
      throw Error(ErrorKind::kUsage, "[output] folder (--output) is required: runs and report go there");
    check_memory();
    // The check comes before the data is read, so that a wrong folder is an error at once.
    folder_.emplace(options_.output.folder);
    const Command command = options_.run.command;
    for (Options& run : options_of_variants(options_)) folders_.emplace_back(run, command);
    sets_ = make_datasets(options_, Need::kTrainAndValidation);
    runs_ = options_of_variants(options_);  // make_datasets has completed the options
    const auto first = make_model(runs_[0]);
    Options silent = options_;
    silent.output.quiet = true;
    start_from_weights(silent, *first);  // wrong weights are an error before the first measurement
    check_output();
    report_.title = title;
    report_.time_note = "median over the steps of the runs in turn";
    for (const Options& run : runs_) {
      report_.runs.emplace_back().name = name_of(run);
      report_.runs.back().class_names = options_.model.class_names;
    }
  }

  /// Returns false if a signal stopped the comparison.
  bool run() {
    {
      const RepeatedBatch source(options_, sets_);
      report_.setup = setup(options_, source.make(options_.train.batch));
      if (!measure_memory(source) || !measure_time(source)) return false;
    }
    if (!train_all()) return false;
    train::write_report(options_.output.folder, report_);
    return true;
  }

  const train::Report& report() const { return report_; }
  /// Returns a line that says what each variant trained on, or "" if all trained on the same.
  std::string trained_on_text() const {
    return options_.compare.spend == "nothing" ? "" : "\ntrained on: " + spent() + "\n";
  }
  int signal() const { return stop_signal_.load(); }

 private:
  bool stopped() const { return stop_signal_.load() != 0; }

  /// Throws for a limit that the machine's memory does not reach: the search for the largest batch fills it.
  void check_memory() const {
    const int64_t most = memory::machine_bytes() / kBytesPerMiB;
    if (device_.is_cpu() && options_.compare.memory > most)
      throw Error(
          ErrorKind::kUsage,
          fmt::format(
              "[compare] memory (--memory) must be at most the memory of this machine, {} MiB, got {}", most,
              options_.compare.memory));
  }

  /// Makes the folders, so that an output that cannot be written is an error now and not after the trainings.
  void check_output() const {
    const auto check = [](const std::filesystem::path& file) { const io::AtomicFile unused(file); };
    check(std::filesystem::path(options_.output.folder) / "index.html");
    for (const Options& run : runs_) check(std::filesystem::path(run.output.folder) / train::kCheckpointFile);
  }

  static std::string name_of(const Options& run) {
    return std::filesystem::path(run.output.folder).filename().string();
  }

  void say(const std::string& line) const {
    if (!options_.output.quiet) std::cout << line << std::endl;
  }

  bool measure_memory(const RepeatedBatch& source) {
    say("memory of one step, and the largest batch in the same memory");
    for (size_t i = 0; i < runs_.size() && !stopped(); ++i) {
      release();  // no strategy starts with the blocks of another
      StepProbe probe(runs_[i], source);
      measure_memory_of(i, source, probe);
      if (i > 0) spend(runs_[i], report_.runs[i], probe);
    }
    if (options_.compare.spend != "nothing") report_.setup.emplace_back("trained on", spent());
    release();
    return !stopped();
  }

  void measure_memory_of(size_t i, const RepeatedBatch& source, StepProbe& probe) {
    for (int step = 0; step < kWarmSteps; ++step) probe.time_step();
    StepMemory memory = probe.measure_step();
    train::ReportRun& run = report_.runs[i];
    run.kept_bytes = memory.kept_bytes;
    run.peak_bytes = memory.peak_bytes;
    run.timeline = std::move(memory.timeline);
    run.marks = std::move(memory.marks);
    if (i == 0) report_.memory_bytes = memory_limit(run.peak_bytes);
    run.largest_batch = largest_fitting(options_.train.batch, [&](int64_t size) {
      return !stopped() && probe.fits(source, size, report_.memory_bytes);
    });
    if (stopped()) return;
    say(fmt::format("  {:<12} keeps {:.1f} MiB, peaks at {:.1f} MiB, fits a batch of {} in {:.1f} MiB",
                    run.name, run.kept_bytes / kMiB, run.peak_bytes / kMiB, run.largest_batch,
                    report_.memory_bytes / kMiB));
  }

  /// Returns the bytes in which the largest batch is searched. On a GPU the question is what fits in it,
  /// unless runs are to train in the memory of the first one.
  int64_t memory_limit(int64_t first_peak) const {
    if (options_.compare.memory > 0) return options_.compare.memory * kBytesPerMiB;
    if (device_.is_cpu() || options_.compare.spend != "nothing") return first_peak;
    return memory::attainable_bytes(device_);
  }

  void release() const {
    // The allocator of a GPU is there as soon as a model was on it.
    if (device_.is_cpu() || !report_.runs.front().timeline.empty()) memory::release_cached(device_);
  }

  /// Lets a run train on the largest batch or crop in the memory of the first one. `probe` measured its step
  /// with the batch of all.
  void spend(Options& run, const train::ReportRun& measured, StepProbe& probe) {
    if (options_.compare.spend == "batch") {
      run.train.batch = std::min(measured.largest_batch, sets_.train->size());
      if (run.train.batch == 0)
        throw Error(ErrorKind::kMemory,
                    fmt::format("{}: not even one image fits in {:.1f} MiB; give more [compare] "
                                "memory (--memory)",
                                measured.name, report_.memory_bytes / kMiB));
    } else if (options_.compare.spend == "crop") {
      const int64_t most = largest_fitting(run.data.crop / kCropUnit, [&](int64_t units) {
        if (stopped()) return false;
        Options trial = run;
        trial.data.crop = units * kCropUnit;
        return probe.fits(RepeatedBatch(trial, training_sets(trial)), trial.train.batch,
                          report_.memory_bytes);
      });
      run.data.crop = std::max(most * kCropUnit, run.data.crop);
    }
    if (options_.compare.spend != "nothing")
      say(fmt::format("  {:<12} trains on {}{}", measured.name, trained_on(run),
                      options_.compare.spend == "batch" && run.train.batch < measured.largest_batch
                          ? ", all images of the data set"
                          : ""));
  }

  static int64_t pixels(const Options& run) { return run.train.batch * run.data.crop * run.data.crop; }

  /// Returns "14 x 240 x 240 pixels [+75 %]".
  std::string trained_on(const Options& run) const {
    std::string text = std::to_string(run.train.batch);
    text += run.data.crop > 0 ? fmt::format(" x {0} x {0} pixels", run.data.crop) : " images";
    const double more =
        options_.data.crop > 0
            ? static_cast<double>(pixels(run)) / static_cast<double>(pixels(options_)) - 1
            : static_cast<double>(run.train.batch) / static_cast<double>(options_.train.batch) - 1;
    return text + fmt::format(" [{:+.0f} %]", 100 * more);
  }

  std::string spent() const {
    std::string text;
    for (const Options& run : runs_)
      text += (text.empty() ? "" : "; ") + name_of(run) + ": " + trained_on(run);
    return text;
  }

  bool measure_time(const RepeatedBatch& source) {
    say("seconds per step, the strategies in turn");
    std::deque<StepProbe> probes;
    std::vector<Options> same = runs_;  // one batch for all, whatever each trains on
    for (Options& run : same) run.train.batch = options_.train.batch;
    for (const Options& run : same) probes.emplace_back(run, source);
    std::vector<std::vector<double>> seconds(runs_.size());
    for (int round = -kWarmSteps; round < kTimedRounds && !stopped(); ++round) {
      for (size_t k = 0; k < runs_.size(); ++k) {
        // Every other round runs backwards, so that each strategy follows its heavier neighbour half of the
        // time.
        const size_t i = round % 2 == 0 ? k : runs_.size() - 1 - k;
        const double taken = probes[i].time_step();
        if (round >= 0) seconds[i].push_back(taken);
      }
    }
    if (stopped()) return false;
    for (size_t i = 0; i < runs_.size(); ++i) {
      report_.runs[i].seconds_per_step = median(seconds[i]);
      const auto [low, high] = std::minmax_element(seconds[i].begin(), seconds[i].end());
      say(fmt::format("  {:<12} {:.3f} s (median of {}, {:.3f} to {:.3f})", name_of(runs_[i]),
                      median(seconds[i]), kTimedRounds, *low, *high));
    }
    probes.clear();
    release();
    return true;
  }

  bool train_all() {
    for (size_t i = 0; i < runs_.size(); ++i) {
      const Options& run = runs_[i];
      say(fmt::format("training {} of {}: {}", i + 1, runs_.size(), name_of(run)));
      const auto model = make_model(run);
      start_from_weights(run, *model);
      const auto train_loader = make_train_loader(run, training_sets(run));
      const auto validation_loader =
          sets_.validation ? make_validation_loader(run, sets_.validation) : nullptr;
      const auto start = std::chrono::steady_clock::now();
      auto outcome = train::train(*model, *train_loader, validation_loader.get(), make_trainer_options(run),
                                  stop_signal_);
      report_.runs[i].training_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      folders_[i].keep();
      if (outcome.signal != 0) return false;
      report_.runs[i].steps = std::move(outcome.steps);
      report_.runs[i].evaluations = std::move(outcome.evaluations);
      report_.runs[i].exponents = outcome.exponents;
      report_.runs[i].details = std::move(outcome.details);
      release();
    }
    return true;
  }

  /// Returns the training data with the crop of `run`, and the sampler of all runs.
  Datasets training_sets(const Options& run) const {
    if (run.data.crop == options_.data.crop) return sets_;
    Options own = run;
    own.output.quiet = true;
    own.output.evaluate_every = 0;
    own.data.sampler = "shuffle";  // the index of classes is that of sets_
    Datasets sets = make_datasets(own, Need::kTrainAndValidation);
    sets.sampler = sets_.sampler;
    return sets;
  }

  Options options_;
  c10::Device device_;
  std::optional<io::FolderLock> folder_;
  std::deque<RunFolder> folders_;  // one per strategy, in folder_
  const std::atomic<int>& stop_signal_;
  Datasets sets_;
  std::vector<Options> runs_;
  train::Report report_;
};

}  // namespace

int compare(Options options, const std::string& title) {
  const std::filesystem::path folder = options.output.folder;
  Comparison comparison(std::move(options), title);
  if (!comparison.run()) {
    std::cerr << "palimpsest: stopped by " << signal_name(comparison.signal())
              << " before the comparison was complete: no report; start it again with --overwrite"
              << std::endl;
    return 128 + comparison.signal();
  }
  std::cout << "\n"
            << train::to_table(comparison.report()) << comparison.trained_on_text()
            << "\nreport: " << (folder / "index.html").string() << std::endl;
  return 0;
}

int run_compare(const Options& options) {
  if (!options.output.quiet) std::cout << to_toml(options) << std::endl;
  return compare(options, "The same training, compared by strategy");
}

}  // namespace palimpsest::cli
