#pragma once

#include "palimpsest/data/loader.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/metrics.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/record.h"
#include "palimpsest/train/schedule.h"
#include "palimpsest/train/tensor_format.h"

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {

struct TrainerOptions {
  int64_t epochs = 1;  ///< length of the training, and of the schedule
  int64_t max_steps =
      0;              ///< stop after so many steps in all, the schedule being that of `epochs`; 0: no limit
  uint64_t seed = 0;  ///< of libtorch's generator during the training (dropout); the loader has its own
  std::string dtype = "f32";  ///< "f32" or "f64": of parameters and images
  bool channels_last = false;
  std::string device = "cpu";          ///< what computes: train/device.h
  std::string precision = "f32";       ///< what is computed in: amp/precision.h
  std::string loss_scale = "dynamic";  ///< f16: "dynamic", "auto" or a number (train/mixed_precision.h)
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  LossOptions loss;
  std::filesystem::path
      output;  ///< folder for checkpoint.safetensors, log.jsonl, config.toml; empty: nothing is written
  int64_t log_every = 10;        ///< steps between log lines; the first and the last step have one, too
  int64_t checkpoint_every = 0;  ///< steps between checkpoints; 0: at each epoch's end only
  int64_t histogram_every = 0;   ///< steps between histograms of gradients; 0: never
  int64_t evaluate_every = 1;    ///< epochs between evaluations (and at the end of the run); 0: never
  bool resume = false;           ///< continue bit-identically from output/checkpoint.safetensors
  std::string config;  ///< the effective configuration as TOML, stored beside and inside the checkpoint
  /// More that the checkpoint should say of itself: "model", "strategy", ... Equal runs need equal entries to
  /// end in equal bytes, so nothing that differs between a run and its resumption.
  std::map<std::string, std::string> metadata;
  bool quiet = false;  ///< no progress on the terminal
};

struct TrainingOutcome {
  std::vector<StepRecord> steps;  ///< of this run (not of the runs that it resumes)
  std::vector<EvaluationRecord> evaluations;
  std::optional<ExponentRecord> exponents;  ///< the last histogram of gradients
  int signal =
      0;  ///< SIGINT or SIGTERM that ended the run after its step, checkpoint saved; 0: ran to its end
};

/// Trains `model` on `train`, evaluates on `validation` (may be null). `stop_signal` is polled after each
/// step, and after each batch of an evaluation, which is then left to the resumed run.
///
/// Files: a checkpoint before the first step, at each epoch's end, every `checkpoint_every` steps, and when
/// the run ends or is stopped; each replaces the one before atomically, so there is a whole one at any
/// moment. A run that does not resume replaces what an earlier run left in `output`.
///
/// Histograms of gradients (the first of step 1) go to log.jsonl, and the last one as a chart to
/// exponents.svg.
///
/// On a GPU, too: parameters, momentum and statistics live there, images and labels go there batch by batch,
/// kept and peak bytes are those of its memory. A checkpoint holds its generator beside the CPU's, and can be
/// resumed on either device.
///
/// Resuming gives the bytes that an unbroken run gives, from whatever moment the run was ended, SIGKILL
/// included: parameters, buffers, momentum and generator come from the checkpoint, learning rate and data
/// order follow from the step, the log is cut back to the checkpoint. The same seed gives the same bytes for
/// any number of loader workers. Not for any number of OpenMP threads: libtorch's and oneDNN's convolutions
/// split sums by thread, so another OMP_NUM_THREADS (or another processor) moves the last bits.
///
/// In f16 a step whose gradients are not all finite is skipped and leaves parameters, momentum and running
/// statistics alone; a run that resumes a checkpoint of another precision says so in one line: parameters are
/// f32 in each.
///
/// Throws Error(kDiverged) naming the step when the loss is not finite (in f16: when 50 steps in a row were
/// skipped), or a parameter is not when it is to be saved (the last good checkpoint stays);
/// Error(kCheckpoint) when the checkpoint to resume is missing, damaged or of another model; Error(kUsage)
/// for options that cannot work, a resumed run with another seed, batch size or number of batches included;
/// Error(kOutput) for a full disk or a read-only folder; Error(kMemory) when memory runs out; Error(kData)
/// from the loader.
TrainingOutcome train(nn::Model& model, data::Loader& train, data::Loader* validation,
                      const TrainerOptions& options, const std::atomic<int>& stop_signal);

/// Loss and metrics of `model` in eval mode over one pass of `loader` (train/evaluate.h).
EvaluationRecord evaluate(nn::Model& model, data::Loader& loader, const LossOptions& loss,
                          const TensorFormat& format);

}  // namespace palimpsest::train
