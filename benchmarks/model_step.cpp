// Claim:    a training step takes less time with the normalizations in place than with libtorch's layers.
// Opponent: `standard`, libtorch's batch norm with every activation in place.
// Limit:    with AVX-512 0.84 for ResNet-50 and 0.78 for ResNeXt-50, with AVX2 0.90 and 0.86; 0.90 for EfficientNet-B0,
//           which saves its pre-activations (store_y). Batch 16, 224 x 224, f32, channels-last.
//
// A step is forward, cross-entropy, backward and SGD with momentum. Both sides are the same model with the
// same weights, on the same batch, threads and allocator (which retains freed blocks), one step each in turn.
// Before the timing, the losses of a first step are compared. A step takes seconds, so it runs half of
// --repeats times.
#include "benchmarks/support.h"
#include "benchmarks/training.h"

#include "palimpsest/models/registry.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

namespace palimpsest::benchmarks::model_step {
namespace {

constexpr int64_t kBatch = 16;
constexpr int64_t kSide = 224;
constexpr int64_t kClasses = 1000;
constexpr double kLargestLossError = 1e-4;  // relative, f32, through 50 layers

/// The trainings of all strategies have the same numbers. No strategy: the one that the network has by default.
Training make_training(const std::string& name, std::optional<nn::Strategy> strategy) {
  torch::manual_seed(0);
  models::ModelOptions options;
  options.classes = kClasses;
  if (strategy) options.strategy = *strategy;
  return {models::make(name, options), {kBatch, kSide, kClasses}, /*channels_last=*/true};
}

Row measure(const std::string& name, double limit, int steps) {
  Training standard = make_training(name, nn::Strategy::kStandard),
           in_place = make_training(name, std::nullopt);
  // The same seed for both: dropout and stochastic depth draw from libtorch's generator.
  const auto first_loss = [](Training& training) {
    torch::manual_seed(1);
    return training.step();
  };
  const double want = first_loss(standard), got = first_loss(in_place);
  if (!(std::abs(got - want) <= kLargestLossError * std::abs(want))) {
    throw std::runtime_error(name + ": the first losses differ: " + std::to_string(got) + " in place, " +
                             std::to_string(want) + " standard");
  }
  const auto timed = [](Training& training) {
    return [&training] { return seconds_of([&] { training.step(); }) * 1e3; };
  };
  const auto times = interleave({timed(in_place), timed(standard)}, steps, /*warm_up=*/2);
  Row row;
  row.claim = name + " step, batch " + std::to_string(kBatch);
  row.opponent_name = "standard";
  row.unit = "ms";
  row.measured = times[0];
  row.opponent = times[1];
  row.limit = limit;
  return row;
}

void measure_all(Report& report, const Options& options) {
  const int steps = std::max(1, options.repeats / 2);
  report.add(measure("resnet50", limit_of_set(0.84, 0.90), steps));
  report.add(measure("resnext50_32x4d", limit_of_set(0.78, 0.86), steps));
  report.add(measure("efficientnet_b0", 0.90, steps));
}

const Benchmark kBenchmark("model_step",
                           "Times a training step of whole networks, in place against standard.",
                           measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::model_step
