#pragma once

#include <palimpsest/palimpsest.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

/// What the programs of this folder share: options, the step in 16 bits, the record of a run. Each is a
/// family of Micikevicius et al., "Mixed Precision Training" (ICLR 2018, section 4), small enough for minutes
/// on a CPU.
namespace mixed_precision {

namespace amp = palimpsest::amp;

struct Options {
  amp::Precision precision = amp::Precision::kF32;
  std::string loss_scale;  ///< "dynamic" or a number; 1 is none; empty where the precision needs none
  int64_t steps = 0;
  /// Batches over which the loss is averaged: each gradient is of loss / accumulate, and their sum is what
  /// the optimizer sees. The same batch stands for all, so one pass is computed and its gradients are
  /// multiplied.
  int64_t accumulate = 1;
  uint64_t seed = 1;
  std::string json;  ///< file for the record; empty: nowhere
};

/// A result of the trained model, by the name that it has in the record.
struct Metric {
  std::string name;
  double value;
};

/// One training: what lies between a loss and new parameters. run() is this loop, for one loss and one
/// optimizer:
///
///   for (int64_t step = 0; step < training.steps(); ++step) {
///     {
///       const auto guard = training.guard();
///       logits = net->forward(x);
///     }
///     const auto loss = torch::cross_entropy_loss(logits.to(at::kFloat), y);   // losses in f32
///     training.backward(loss);
///     training.step(sgd, /*clip=*/5);
///     training.end_step({{"loss", loss.item<double>()}});
///   }
class Training {
 public:
  /// `model`, if it has running statistics: they are put back after a step that is skipped.
  Training(const std::string& name, const Options& options);
  void keep_statistics_of(const torch::nn::Module& model);

  int64_t steps() const { return options_.steps; }
  uint64_t seed() const { return options_.seed; }
  /// The scope of a forward pass.
  amp::PrecisionGuard guard() const { return {at::kCPU, options_.precision}; }

  /// Gradients of scale * loss / accumulate. Every kObserveEvery-th step their exponents are counted.
  void backward(const at::Tensor& loss);
  /// Unscales the gradients, adds up those of all accumulated batches, clips their norm to `clip` (0: not at
  /// all), has `optimizer` step unless one of them is not finite, and zeroes them.
  void step(torch::optim::Optimizer& optimizer, double clip = 0);
  /// Records the step, its losses first; call it once a step, after step() of all optimizers. Throws
  /// Error(kDiverged) for a loss that is not finite where nothing was skipped, and after 50 skipped steps in
  /// a row; what was recorded is written before.
  void end_step(const std::vector<Metric>& losses);

  /// All steps of a training with one loss, that of step 0, 1, ...; one optimizer and `clip` as in step().
  void run(torch::optim::Optimizer& optimizer, double clip, const std::function<at::Tensor(int64_t)>& loss);

  /// Prints `metrics` and which gradients were lost, and writes the record: a line of JSON for each step,
  /// then one of the whole run. Same options, same bytes.
  void finish(const std::vector<Metric>& metrics);

  static constexpr int64_t kObserveEvery = 20;

 private:
  bool observes() const { return step_ % kObserveEvery == 0; }
  void write() const;

  std::string name_;
  Options options_;
  amp::GradScaler scaler_;
  std::optional<palimpsest::memory::BufferSnapshot> buffers_;
  amp::ExponentHistogram activations_, weights_;
  int64_t step_ = 0, skipped_ = 0;
  bool skipped_now_ = false;
  std::string record_;
};

/// A whole program: reads the options (docs/mixed_precision.md lists them), trains, and writes the record.
/// Returns the exit status: that of palimpsest::Error, whose line goes to stderr after the program's name.
int run(int argc, char** argv, const std::string& name, const std::string& description, int64_t steps,
        const std::function<void(Training&)>& train);

}  // namespace mixed_precision
