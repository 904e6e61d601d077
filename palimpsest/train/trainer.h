#pragma once

#include "palimpsest/data/loader.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/metrics.h"
#include "palimpsest/train/optimizer.h"
#include "palimpsest/train/schedule.h"

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace palimpsest::train {

struct TrainerOptions {
  int64_t epochs = 1;
  int64_t max_steps = 0;  ///< stop after so many steps in all; 0: no limit
  uint64_t seed = 0;
  std::string dtype = "f32";  ///< "f32" or "f64": of parameters and images
  bool channels_last = false;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  LossOptions loss;
  std::filesystem::path output;   ///< folder for checkpoint.safetensors, log.jsonl, config.toml
  int64_t log_every = 10;         ///< steps between log lines
  int64_t checkpoint_every = 0;   ///< steps between checkpoints; 0: at each epoch's end only
  int64_t evaluate_every = 1;     ///< epochs between evaluations; 0: never
  bool resume = false;            ///< continue bit-identically from output/checkpoint.safetensors
  std::string config;             ///< the effective configuration as TOML, stored beside and inside the checkpoint
  bool quiet = false;             ///< no progress on the terminal
};

/// One step, as log.jsonl has it.
struct StepRecord {
  int64_t step = 0, epoch = 0;
  double loss = 0, lr = 0, seconds = 0;
  int64_t kept_bytes = 0, current_bytes = 0, peak_bytes = 0;
};

struct EvaluationRecord {
  int64_t step = 0, epoch = 0;
  double loss = 0;
  Metrics metrics;  ///< train/metrics.h: mean and per-class IoU, or top-1 and top-5
};

struct TrainingOutcome {
  std::vector<StepRecord> steps;            ///< of this run (not of the runs that it resumes)
  std::vector<EvaluationRecord> evaluations;
  int signal = 0;  ///< SIGINT or SIGTERM that ended the run after its step, checkpoint saved; 0: ran to its end
};

/// Trains `model` on `train`, evaluates on `validation` (may be null). `stop_signal` is polled after each step.
/// Throws Error(kDiverged) naming the step when the loss is not finite (the last good checkpoint stays),
/// Error(kCheckpoint) when the checkpoint to resume does not fit, Error(kOutput), Error(kMemory).
TrainingOutcome train(nn::Model& model, data::Loader& train, data::Loader* validation, const TrainerOptions& options,
                      const std::atomic<int>& stop_signal);

/// Loss and metrics of `model` in eval mode over one pass of `loader`.
EvaluationRecord evaluate(nn::Model& model, data::Loader& loader, const LossOptions& loss, const std::string& dtype,
                          bool channels_last);

}  // namespace palimpsest::train
