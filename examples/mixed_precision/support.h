#pragma once

#include <palimpsest/palimpsest.h>
#include <palimpsest/train/step.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// The parts that the programs of this folder share: options, the training step in 16 bits, the record of a
/// run. Each program trains one family of networks of Micikevicius et al., "Mixed Precision Training" (ICLR
/// 2018, section 4), so small that it takes minutes on a CPU.
namespace mixed_precision {

namespace amp = palimpsest::amp;

struct Options {
  amp::Precision precision = amp::Precision::kF32;
  std::string loss_scale;  ///< "dynamic" or a number; 1: no scale; empty if the precision needs none
  int64_t steps = 0;
  uint64_t seed = 1;
  c10::Device device{c10::kCPU};
  std::string json;  ///< file for the record; empty: none
};

/// A named result of the trained model.
struct Metric {
  std::string name;
  double value;
};

/// One training. run() is this loop, for one loss and one optimizer:
///
///   for (int64_t step = 0; step < training.steps(); ++step) {
///     training.begin_step();
///     const auto [x, y] = batch(step);   // on training.device()
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
  Training(const std::string& name, const Options& options);
  /// Restores the running statistics of `model` after a skipped step. Call it before the first step.
  void keep_statistics_of(const torch::nn::Module& model);

  int64_t steps() const { return options_.steps; }
  uint64_t seed() const { return options_.seed; }
  c10::Device device() const { return options_.device; }
  /// Returns a tensor of the data, which is made on the CPU, on the device of the training.
  at::Tensor moved(const at::Tensor& data) const { return data.to(device()); }
  /// The scope of a forward pass.
  amp::PrecisionGuard guard() const { return {device(), options_.precision}; }

  /// Begins a step. Every kObserveEvery-th step counts the exponents of its gradients.
  void begin_step();
  /// Computes the gradients of scale * loss.
  void backward(const at::Tensor& loss);
  /// Unscales the gradients, clips their norm to `clip` (0: no clipping), calls optimizer.step() unless a gradient
  /// is not finite, and zeroes the gradients.
  void step(torch::optim::Optimizer& optimizer, double clip = 0);
  /// Ends the step, after step() of all optimizers, and records it with its losses. Throws Error(kDiverged)
  /// for a loss that is not finite although no update was skipped, and after 50 skipped steps in a row; the
  /// record is written before.
  void end_step(const std::vector<Metric>& losses);

  /// Runs all steps of a training. `loss(step)` is the loss of step 0, 1, ...; `clip` is the argument of
  /// step().
  void run(torch::optim::Optimizer& optimizer, double clip, const std::function<at::Tensor(int64_t)>& loss);

  /// Prints `metrics` and the shares of lost gradients, and writes the record: a line of JSON per step, then
  /// one for the whole run. The same options give the same bytes on a CPU.
  void finish(const std::vector<Metric>& metrics);

  static constexpr int64_t kObserveEvery = 20;

 private:
  void write() const;

  std::string name_;
  Options options_;
  palimpsest::train::Step step_;
  amp::ExponentHistogram activations_, weights_;
  std::string record_;
};

/// Runs a whole program: reads the options (docs/mixed_precision.md lists them), trains, and writes the
/// record. Returns the exit status, which a palimpsest::Error determines; its line goes to stderr after the
/// program's name.
int run(int argc, char** argv, const std::string& name, const std::string& description, int64_t steps,
        const std::function<void(Training&)>& train);

}  // namespace mixed_precision
