#pragma once

#include "palimpsest/distributed/data_parallel.h"
#include "palimpsest/distributed/process_group.h"
#include "palimpsest/nn/state_dict.h"
#include "palimpsest/train/batch_source.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/network.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/records.h"
#include "palimpsest/train/schedule.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {

/// The properties of the data that pictures and tables of reports need.
struct ReportOptions {
  int64_t pictures = 4;                        ///< of each evaluation: image, truth and prediction
  std::vector<std::string> class_names;        ///< empty: "class 0", ...
  at::Tensor class_colors;                     ///< u8 (classes, 3); undefined: data::class_colors
  std::array<double, 3> mean{}, std{1, 1, 1};  ///< of the normalization of the images: (RGB - mean) / std
};

struct TrainerOptions {
  int64_t epochs = 1;  ///< length of the training and of the schedule
  /// The run stops after this many steps in total; the schedule still spans all epochs. 0: no limit.
  int64_t max_steps = 0;
  /// Seed of libtorch's generator during the training (dropout). The loader has its own seed.
  uint64_t seed = 0;
  std::string dtype = "f32";           ///< of parameters and images: "f32" or "f64"
  bool channels_last = false;          ///< train/tensor_format.h
  std::string device = "cpu";          ///< train/device.h
  std::string precision = "f32";       ///< of the computation: amp/precision.h
  std::string loss_scale = "dynamic";  ///< f16: "dynamic", "auto" or a number (train/loss_scale.h)
  /// Parts of each batch, with a forward and a backward pass each, whose gradients are added: memory of a
  /// part, step of the batch (train/step_loss.h). A normalization in training mode normalizes each part by
  /// itself.
  int64_t accumulate = 1;
  /// In (0, 1): parameters and running statistics are averaged (train/ema.h), evaluations take the averages,
  /// and checkpoints hold both. 0: no average.
  double ema_decay = 0;
  std::vector<std::string> freeze = {};  ///< layers that stay as they are (train/frozen.h)
  bool freeze_norm = false;              ///< normalizations keep their running statistics (train/frozen.h)
  /// "metric" or "loss": best.safetensors is the checkpoint of the best evaluation (train/best.h). "none":
  /// there is no such file.
  std::string keep_best = "none";
  /// The run ends normally after this many evaluations in a row without a better one. 0: never. Needs
  /// keep_best.
  int64_t patience = 0;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  LossOptions loss;
  /// Folder for checkpoint.safetensors, log.jsonl, config.toml, exponents.svg and the files of reports
  /// (train/report/run_files.h). Empty: nothing is written.
  std::filesystem::path output;
  int64_t log_every = 10;        ///< steps between log lines; the first and the last step always have one
  int64_t checkpoint_every = 0;  ///< steps between checkpoints; 0: at the end of each epoch only
  int64_t histogram_every = 0;   ///< steps between histograms of gradients; 0: never
  int64_t evaluate_every = 1;    ///< epochs between evaluations; one also follows the last step; 0: never
  bool tensorboard = false;      ///< writes event files (io/event_file.h) into `output`
  ReportOptions report = {};
  bool resume = false;  ///< continues bit-exactly from output/checkpoint.safetensors
  std::string config;   ///< the configuration of the run (TOML), stored in the checkpoint
  /// Text of config.toml, such as `config` with the settings of this machine. Empty: `config`.
  std::string config_file;
  /// More entries for the checkpoint's metadata: "model", "strategy", ... Give a run and its resumption the
  /// same entries: they are part of the file's bytes.
  std::map<std::string, std::string> metadata;
  bool quiet = false;  ///< no progress on the terminal
  /// The numbers of a step (loss, norm of the gradients) are read while the device has the next step to do,
  /// and those of an evaluation at its end. false: at once, before the backward pass. nullopt: late on a GPU,
  /// so that it never idles, at once on the CPU. Several processes read at once: their loss is a sum over
  /// all. Only the moment differs, not a result.
  std::optional<bool> reads_late = std::nullopt;
  /// The processes that train together, which must outlive the call. null: this process alone.
  distributed::Group* group = nullptr;
  distributed::Compression gradient_compression = distributed::Compression::kNone;
};

struct TrainingOutcome {
  std::vector<StepRecord> steps;              ///< of this run, not of the runs that it resumes
  std::vector<EvaluationRecord> evaluations;  ///< without their confusion matrices
  std::optional<EvaluationDetails> details;   ///< of the last evaluation
  int64_t bad_images = 0;  ///< different ones that could not be read in this run, of all ranks
  int64_t last_step = 0;   ///< that the checkpoint holds, the steps of resumed runs included
  std::optional<ExponentRecord> exponents;  ///< the last histogram of gradients
  /// With ema_decay: the averages by the names of parameters and buffers. The module holds the parameters
  /// that were trained; nn::load_state_dict with LoadOptions::strict = false loads the averages into it.
  nn::StateDict averages;
  bool stopped_early = false;  ///< by `patience`, in this run or the runs that it resumes
  /// The signal (SIGINT, SIGTERM or SIGHUP) that ended the run early, after the step was completed and a
  /// checkpoint saved. 0: the run ended normally.
  int signal = 0;
};

/// A stop signal that never comes.
inline const std::atomic<int> kNeverStops{0};

/// Trains any module that maps images to logits (train/network.h) on `train`, and evaluates it on
/// `validation`, which may be null. `stop_signal` is polled after each step and after each batch of an
/// evaluation; the resumed run repeats an evaluation that was cut short.
///
/// Files: a checkpoint is written before the first step, at the end of each epoch, every `checkpoint_every`
/// steps, and when the run ends or is stopped. Each checkpoint replaces the one before atomically, so there
/// is a complete checkpoint at any moment. A run that does not resume overwrites the checkpoint and the log
/// of an earlier run in `output`. A resumed run writes config.toml after its first checkpoint: a run that
/// fails or has nothing to do leaves it. Only one run at a time may write into `output`.
///
/// Histograms of gradients, the first one after step 1, go to log.jsonl. The chart exponents.svg shows the
/// last one.
///
/// For reports, evaluation.safetensors holds the confusion matrix and a few pictures of the last evaluation,
/// and step_memory.safetensors the live bytes over the second step. A recording that another Timeline or a
/// profiler makes impossible is left out. With `tensorboard`, event files hold the log, the pictures and the
/// histograms too; a resumed run begins a new event file.
///
/// GPU: parameters, momentum and statistics live on the GPU. Each batch travels to it while the step before
/// runs; images of bytes travel as bytes. The host waits at most once per step: for the loss of the step
/// before, and in f16 for the decision to skip. Kept and peak bytes are bytes of the GPU's memory. A
/// checkpoint holds the states of the generators of GPU and CPU. A run can be resumed on either device.
///
/// Resuming gives the bytes of an unbroken run, at whatever moment the run was ended, by SIGKILL too:
/// parameters, buffers, averages, momentum, generator and best evaluation come from the checkpoint (that of
/// the checkpoint's own step from the log), learning rate and data order are functions of the step, and the
/// log is cut back to the checkpoint. The same seed gives the same bytes with any number of loader workers,
/// but not with any number of OpenMP threads: the convolutions of libtorch and oneDNN split sums by thread,
/// so another OMP_NUM_THREADS or another processor changes the last bits.
///
/// f16: a step with a gradient that is not finite is skipped and changes no parameter, momentum or running
/// statistic. A run may resume a checkpoint of another precision, because parameters are f32 in each; one
/// line of the progress notes it.
///
/// Several processes: every rank of `group` calls train() with the same options, the same network and its
/// share of the batches (BatchSource::share). The network of rank 0 is copied to the others. Each step is
/// that of the whole batch: every rank computes the gradients of its part, weighted by the number of its
/// pixels (images) that count, and the gradients are averaged, then clipped. Loss, images per second and
/// evaluations are those of all ranks, on all ranks; times and bytes are those of the rank itself. A step has
/// one collective beside those of the gradients and of the layers, with accumulate > 1 two, and two more if
/// images could not be read.
///
/// Rank 0 alone reads and writes in `output`, and shows progress. Each rank has the running statistics of its
/// own part, unless the network's normalizations name the group; those of rank 0 are evaluated and saved.
///
/// Images that cannot be read and that the source replaces (BatchSource::take_bad) go to log.jsonl, each at
/// its first appearance since the run began or was resumed; the progress names the first ones, and at the end
/// the number.
///
/// A stop signal on one rank stops all ranks after the same step; TrainingOutcome::signal is the same on all.
/// When train() returns, the last checkpoint is complete.
///
/// A checkpoint also holds the generators of the other ranks: dropout draws other numbers on each rank. A
/// resumed run gives the bytes of an unbroken run if it has the same number of ranks. With another number the
/// order of the data goes on; ranks that the checkpoint has no generator of begin a new one. One line of the
/// progress says so.
///
/// An exception on one rank does not end the others: tell them with Group::fail, and end the process. If the
/// loss is not finite, all ranks throw the same Error(kDiverged). Throws as Group does.
///
/// Throws Error(kDiverged), naming the step, if the loss is not finite (in f16 if 50 steps in a row were
/// skipped), or if a parameter that is to be saved is not finite; the last checkpoint stays. With
/// numbers that are read late the module has been updated once or twice with that loss. Throws
/// Error(kCheckpoint) if the checkpoint to resume is missing, damaged or of another model; Error(kUsage) for
/// options that cannot work, and for a resumed run with another seed, batch size, number of batches, order or
/// identity of the data; Error(kOutput) for a full disk or a read-only folder; Error(kMemory) if memory runs
/// out; and Error(kData) from the loader.
TrainingOutcome train(const Network& network, data::Loader& train, data::Loader* validation,
                      const TrainerOptions& options, const std::atomic<int>& stop_signal = kNeverStops);
/// Does the same with batches from another source than a loader.
TrainingOutcome train(const Network& network, BatchSource& train, BatchSource* validation,
                      const TrainerOptions& options, const std::atomic<int>& stop_signal = kNeverStops);

}  // namespace palimpsest::train
