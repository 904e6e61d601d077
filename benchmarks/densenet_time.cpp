// Claim:    a training step of a densely connected network takes less time with the form `fused` than with
//           libtorch's own layers, and about the same time with `shared`.
// Opponent: `shared_gradient` with strategy `standard`: libtorch's concatenation, batch norm, ReLU in place,
//           convolution and pooling; for BC-100 in the faster of the two layouts.
// Limit:    DenseNet-BC-100 (k = 12, batch 64, 32 x 32, f32): fused 0.70, shared 1.10; DenseNet-121 (batch
//           16, 224 x 224): fused 0.66 with AVX-512, 0.72 with AVX2.
//
// A step is forward, cross-entropy, backward, SGD with momentum. The activation is ReLU; the bottleneck saves
// y (`store_y`). All sides have the same weights, batch, threads and allocator (which retains freed blocks),
// and run one step each in turn. Before the timing, the losses of a first step are compared. A step takes
// seconds, so it runs a fifth of --repeats times.
#include "benchmarks/densenet.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace palimpsest::benchmarks::densenet_time {
namespace {

constexpr double kLargestLossError = 1e-4;  // relative, f32

void compare_losses(const std::string& name, DenseTraining& got, DenseTraining& want) {
  const double a = got.step(), b = want.step();
  if (!(std::abs(a - b) <= kLargestLossError * std::abs(b)))
    throw std::runtime_error(name + ": the first losses differ: " + std::to_string(a) + ", standard " +
                             std::to_string(b));
}

Side timed(DenseTraining& training) {
  return [&training] { return seconds_of([&] { training.step(); }) * 1e3; };
}

Row row_of(const std::string& claim, const std::string& opponent_name, const Spread& measured,
           const Spread& opponent, double limit) {
  Row row;
  row.claim = claim;
  row.opponent_name = opponent_name;
  row.unit = "ms";
  row.measured = measured;
  row.opponent = opponent;
  row.limit = limit;
  return row;
}

void small_network(Report& report, int steps) {
  const DenseInput input{"densenet_bc100_k12", 64, 32};
  DenseTraining last(input, kLibtorchLayers, true), first(input, kLibtorchLayers, false),
      fused(input, {nn::DenseStrategy::kFused, nn::Strategy::kStoreY}, true),
      shared(input, {nn::DenseStrategy::kShared, nn::Strategy::kStoreY}, true);
  compare_losses("fused", fused, last);
  compare_losses("shared", shared, first);
  const auto times = interleave({timed(fused), timed(shared), timed(last), timed(first)}, steps, 1);
  const bool channels_last = times[2].median < times[3].median;
  const std::string opponent =
      std::string("libtorch's layers, ") + (channels_last ? "channels-last" : "NCHW");
  const Spread& faster = channels_last ? times[2] : times[3];
  report.add(row_of("BC-100 k=12 step, fused", opponent, times[0], faster, 0.70));
  report.add(row_of("BC-100 k=12 step, shared", opponent, times[1], faster, 1.10));
}

void large_network(Report& report, int steps) {
  const DenseInput input{"densenet121", 16, 224};
  DenseTraining plain(input, kLibtorchLayers, true),
      fused(input, {nn::DenseStrategy::kFused, nn::Strategy::kStoreY}, true);
  compare_losses("fused", fused, plain);
  const auto times = interleave({timed(fused), timed(plain)}, steps, 1);
  report.add(row_of("DenseNet-121 step, fused", "libtorch's layers, channels-last", times[0], times[1],
                    limit_of_set(0.66, 0.72)));
}

void measure_all(Report& report, const Options& options) {
  const int steps = std::max(1, options.repeats / 5);
  small_network(report, steps);
  large_network(report, steps);
}

const Benchmark kBenchmark("densenet_time",
                           "Times a training step of densely connected networks against libtorch's layers.",
                           measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::densenet_time
