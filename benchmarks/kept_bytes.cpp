// Claim:    a forward pass saves about half as many bytes for backward in place as with `standard`.
// Opponent: `standard`, libtorch's batch norm with the activation in place.
// Limit:    0.49 for the paper's ResNeXt-101 (pre-activation); 0.55 for ResNet-50, with leaky ReLU in place
//           and with exact ReLU by store_y; 0.45 for EfficientNet-B0 and
//           MobileNetV3, whose libtorch layers save three tensors per activation.
//
// Saved = live bytes after the forward pass, with the loss alive, minus live bytes before it, by the counting
// allocator, per image of 224 x 224, f32: two images are measured and the result is halved. MB = 10^6 bytes.
// Bytes have no spread, so each side runs once.
#include "benchmarks/support.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/models/registry.h"

#include <torch/torch.h>

namespace palimpsest::benchmarks::kept_bytes {
namespace {

struct Claim {
  const char* model;
  double limit;
  nn::Strategy strategy = nn::Strategy::kInplace2;
  nn::Activation activation = nn::Activation::kLeakyReLU;
};

// Limits are the counts by hand, rounded up: 79.1 / 162.4 for the paper's network, 45.5 / 85.3 for ResNet-50.
constexpr Claim kClaims[] = {
    {"resnet50", 0.55},
    {"resnet50", 0.55, nn::Strategy::kStoreY, nn::Activation::kReLU},
    {"resnet101", 0.55},
    {"resnext50_32x4d", 0.55},
    {"resnext101_64x4d", 0.55},
    {"resnext50_preact", 0.49},
    {"resnext101_preact", 0.49},
    {"resnext152_preact", 0.50},
    {"wide_resnet38", 0.42},
    {"wide_resnet38_a2", 0.44},
    {"efficientnet_b0", 0.45, nn::Strategy::kStoreY, nn::Activation::kSiLU},
    {"efficientnet_b0", 0.45, nn::Strategy::kInplaceBit, nn::Activation::kSiLU},
    {"mobilenet_v3_large", 0.45, nn::Strategy::kStoreY, nn::Activation::kHardSwish},
};

double saved_megabytes(const char* name, nn::Strategy strategy, nn::Activation activation) {
  torch::manual_seed(0);
  models::ModelOptions options;
  options.strategy = strategy;
  options.activation = activation;
  const auto model = models::make(name, options);
  for (auto& p : model->parameters()) {
    if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
  }
  const auto images = torch::randn({2, 3, 224, 224}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto targets = torch::zeros({2}, torch::kInt64);
  memory::Meter meter;
  const auto loss = torch::nn::functional::cross_entropy(model->forward(images), targets);
  meter.forward_done();
  return static_cast<double>(meter.kept_bytes()) / 2 / 1e6;
}

void measure_all(Report& report, const Options&) {
  for (const auto& claim : kClaims) {
    Row row;
    row.claim = std::string(claim.model) + " " + nn::to_string(claim.activation) + " " +
                nn::to_string(claim.strategy);
    row.opponent_name = "standard";
    row.unit = "MB";
    row.opponent = exactly(saved_megabytes(claim.model, nn::Strategy::kStandard, claim.activation));
    row.measured = exactly(saved_megabytes(claim.model, claim.strategy, claim.activation));
    row.limit = claim.limit;
    report.add(row);
  }
}

const Benchmark kBenchmark(
    "kept_bytes", "Counts the bytes that a forward pass saves for backward, in place against standard.",
    measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::kept_bytes
