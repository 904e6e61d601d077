// Claim:    densely connected networks save linear memory under `shared` and `fused`.
// Opponent: the form `naive`, or the number of bytes that the row claims.
// Limits (f32, CIFAR batch 64 at 32 x 32 unless the line says otherwise):
//   BC-160 k=12, saved for backward    of naive: fused 0.12, shared 0.27 (9k per layer), shared with the
//                                      bottleneck in place 0.12 (5k). The paper's 22 % is of total memory,
//                                      over another baseline.
//   BC-100 k=12, peak of a step        fused 450 MB above weights, gradients and momentum
//   saved bytes over depth, exponent   fused 1.05, from 100 to 400 layers
//   DenseNet-264 k=48, 224 x 224       52 MB saved per image in f32, 26 MB in bf16
//   BC-1000 k=12, a step               runs with the allocator capped at 12 GB; its loss agrees with the loss
//                                      of `checkpoint` to 1e-4
//
// Saved = live bytes after the forward pass, with the loss alive, minus live bytes before it, by the counting
// allocator. MB = 10^6 bytes. Bytes have no spread, so each side runs once. Saved bytes are proportional to
// the batch, so batch 8 stands for batch 64: naive at a batch of 64 would need 5 GB.
#include "benchmarks/densenet.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"

#include <cmath>
#include <stdexcept>

namespace palimpsest::benchmarks::densenet_bytes {
namespace {

constexpr int64_t kBatch = 64;
constexpr DenseForm kFused{nn::DenseStrategy::kFused, nn::Strategy::kStoreY};
constexpr DenseForm kNaive{nn::DenseStrategy::kNaive, nn::Strategy::kStandard};

/// MB saved for backward at a batch of `input.batch`, measured with `batch` images.
double saved_megabytes(const DenseInput& input, const DenseForm& form, int64_t batch,
                       at::ScalarType dtype = at::kFloat) {
  DenseTraining training({input.model, batch, input.side}, form, true);
  training.model->to(dtype);
  training.images = training.images.to(dtype);
  memory::Meter meter;
  const at::Tensor loss = training.loss();
  meter.forward_done();
  return static_cast<double>(meter.kept_bytes()) / 1e6 * static_cast<double>(input.batch) /
         static_cast<double>(batch);
}

Row bytes_row(const std::string& claim, const std::string& opponent, double measured, double wanted,
              double limit) {
  Row row;
  row.claim = claim;
  row.opponent_name = opponent;
  row.unit = "MB";
  row.measured = exactly(measured);
  row.opponent = exactly(wanted);
  row.limit = limit;
  return row;
}

void against_naive(Report& report) {
  const DenseInput input{"densenet_bc160_k12", kBatch, 32};
  const double naive = saved_megabytes(input, kNaive, 8);
  const auto add = [&](const char* name, const DenseForm& form, double limit) {
    report.add(bytes_row(std::string("BC-160 k=12 kept, ") + name, "naive", saved_megabytes(input, form, 8),
                         naive, limit));
  };
  add("fused", kFused, 0.12);
  add("shared (9k)", {nn::DenseStrategy::kShared, nn::Strategy::kStandard}, 0.27);
  add("shared, one tensor per bottleneck (5k)", {nn::DenseStrategy::kShared, nn::Strategy::kStoreY}, 0.12);
}

void peak(Report& report) {
  DenseTraining training({"densenet_bc100_k12", kBatch, 32}, kFused, true);
  training.step();  // allocates the momentum
  for (auto& p : training.model->parameters())
    p.mutable_grad() = torch::zeros_like(p);  // they are not counted
  const auto before = memory::memory_stats().current_bytes;
  memory::reset_peak();
  training.loss().backward();
  const auto above = static_cast<double>(memory::memory_stats().peak_bytes - before) / 1e6;
  report.add(bytes_row("BC-100 k=12 peak above weights, fused", "450 MB", above, 450, 1));
}

void growth(Report& report) {
  const double at_100 = saved_megabytes({"densenet_bc100_k12", kBatch, 32}, kFused, 2),
               at_400 = saved_megabytes({"densenet_bc400_k12", kBatch, 32}, kFused, 2);
  Row row = bytes_row("kept bytes over depth, exponent, fused", "linear",
                      std::log(at_400 / at_100) / std::log(4.0), 1, 1.05);
  row.unit = "";
  report.add(row);
}

void large_images(Report& report) {
  const DenseInput input{"densenet264_k48", 1, 224};
  report.add(bytes_row("DenseNet-264 k=48 kept per image, f32, fused", "52 MB",
                       saved_megabytes(input, kFused, 2), 52, 1));
  report.add(bytes_row("DenseNet-264 k=48 kept per image, bf16, fused", "26 MB",
                       saved_megabytes(input, kFused, 2, at::kBFloat16), 26, 1));
}

void thousand_layers(Report& report) {
  constexpr int64_t kCap = 12'000'000'000;
  const DenseInput input{"densenet_bc1000_k12", kBatch, 32};
  const double want = [&] {
    const at::NoGradGuard no_grad;  // the loss of the first step needs no backward pass
    DenseTraining plain(input, {nn::DenseStrategy::kCheckpoint, nn::Strategy::kStoreY}, true);
    return plain.loss().item<double>();
  }();
  memory::set_memory_limit(kCap);
  DenseTraining training(input, kFused, true);
  memory::reset_peak();
  const double got = training.step();
  const auto highest = static_cast<double>(memory::memory_stats().peak_bytes) / 1e6;
  memory::set_memory_limit(0);
  if (!(std::abs(got - want) <= 1e-4 * std::abs(want)))
    throw std::runtime_error("1000 layers: the losses differ: " + std::to_string(got) + " fused, " +
                             std::to_string(want) + " checkpoint");
  report.add(bytes_row("BC-1000 k=12 step, peak, fused", "12 GB", highest, 12000, 1));
}

void measure_all(Report& report, const Options&) {
  against_naive(report);
  peak(report);
  growth(report);
  large_images(report);
  thousand_layers(report);
}

const Benchmark kBenchmark("densenet_bytes", "Counts the bytes of densely connected networks.", measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::densenet_bytes
