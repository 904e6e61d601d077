// Claim:    a training step of ResNet-50 (batch 16, 224 x 224, channels-last, inplace_2) takes no more time in
//           16 bits than in f32.
// Opponent: the same step in f32.
// Limit:    0.60 for bf16 if the processor multiplies it faster than f32 (ops::product_precision()), else 1.0 if it
//           converts bf16 (AVX512-BF16); 1.0 for f16 and f16-pseudo if it converts f16 (F16C). `standard` in bf16 under
//           the same autocast is a control, which claims nothing: libtorch's normalizations, and convolutions of the
//           same precision.
//
// All sides are the same network with the same f32 weights, on the same batch, threads and allocator (which
// retains freed blocks), one step each in turn: forward, cross-entropy in f32, backward and SGD with
// momentum; in f16 with a constant loss scale. Before the timing, the losses of a first step are compared
// with f32's. A step takes seconds, so it runs a third of --repeats times.
#include "benchmarks/support.h"
#include "benchmarks/training.h"
#include "palimpsest/amp/precision.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/ops/autocast.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace palimpsest::benchmarks::precision_time {
namespace {

constexpr int64_t kBatch = 16, kSide = 224, kClasses = 1000;
constexpr double kLimit = 0.60, kLimitOfWidened = 1.0;
constexpr double kLargestLossError = 0.02;  // relative, of 16 bits through 50 layers
constexpr double kNoClaim = std::numeric_limits<double>::infinity();

std::unique_ptr<Training> make_training(amp::Precision precision, nn::Strategy strategy) {
  torch::manual_seed(0);
  models::ModelOptions options;
  options.classes = kClasses;
  options.strategy = strategy;
  const train::StepOptions step{precision, {train::LossScale::Kind::kConstant, 1024}};
  return std::make_unique<Training>(models::make("resnet50", options), BatchShape{kBatch, kSide, kClasses},
                                    /*channels_last=*/true, step);
}

struct Subject {
  const char* name;
  amp::Precision precision;
  nn::Strategy strategy;
};
constexpr Subject kSubjects[] = {
    {"f32", amp::Precision::kF32, nn::Strategy::kInplace2},
    {"bf16", amp::Precision::kBF16, nn::Strategy::kInplace2},
    {"f16", amp::Precision::kF16, nn::Strategy::kInplace2},
    {"f16-pseudo", amp::Precision::kF16Pseudo, nn::Strategy::kInplace2},
    {"bf16 of standard layers", amp::Precision::kBF16, nn::Strategy::kStandard},
};

/// Returns whether products of this type are computed in it, and not in f32 on widened operands.
bool multiplies_in(at::ScalarType type) {
  return !ops::product_precision({type}, at::empty({0})).compute_in_f32;
}

double limit_of(const Subject& subject) {
  if (subject.strategy == nn::Strategy::kStandard) return kNoClaim;
  if (subject.precision != amp::Precision::kBF16) return processor_has("f16c") ? kLimitOfWidened : kNoClaim;
  if (multiplies_in(at::kBFloat16)) return kLimit;
  return processor_has("avx512_bf16") ? kLimitOfWidened : kNoClaim;
}

void measure(Report& report, int steps) {
  std::vector<std::unique_ptr<Training>> trainings;
  std::vector<Side> sides;
  double want = 0;
  for (const Subject& subject : kSubjects) {
    auto& t = *trainings.emplace_back(make_training(subject.precision, subject.strategy));
    const double got = t.step();
    if (trainings.size() == 1) want = got;
    if (!(std::abs(got - want) <= kLargestLossError * std::abs(want)))
      throw std::runtime_error(std::string(subject.name) + ": the first loss is " + std::to_string(got) +
                               ", in f32 " + std::to_string(want));
    sides.emplace_back([&t] { return seconds_of([&] { t.step(); }) * 1e3; });
  }
  const auto times = interleave(sides, steps, /*warm_up=*/1);
  for (std::size_t i = 1; i < times.size(); ++i) {
    Row row;
    row.claim = std::string("resnet50 step, batch 16, ") + kSubjects[i].name;
    row.opponent_name = "f32";
    row.unit = "ms";
    row.measured = times[i];
    row.opponent = times[0];
    row.limit = limit_of(kSubjects[i]);
    report.add(row);
  }
}

void measure_all(Report& report, const Options& options) {
  measure(report, std::max(1, options.repeats / 3));
}

const Benchmark kBenchmark("precision_time", "Times a training step of ResNet-50 in 16 bits against f32.",
                           measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::precision_time
