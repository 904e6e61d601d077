#include "palimpsest/nn/conv2d.h"

#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/memory/meter.h"
#include "tests/nn/support.h"

#include <sstream>

namespace palimpsest::nn {
namespace {

constexpr ConvolutionBackend kBackends[] = {ConvolutionBackend::kFastest, ConvolutionBackend::kLibtorch,
                                            ConvolutionBackend::kLibtorchLayer};

Conv2d seeded(const torch::nn::Conv2dOptions& options, ConvolutionBackend backend) {
  torch::manual_seed(5);
  return Conv2d(options, backend);
}

TEST(Conv2d, HasTheKeysTheOptionsAndTheInitialValuesOfLibtorchs) {
  const auto options = torch::nn::Conv2dOptions(4, 6, {3, 5}).stride(2).groups(2);
  torch::manual_seed(5);
  torch::nn::Conv2d theirs(options);
  const Conv2d ours = seeded(options, ConvolutionBackend::kFastest);
  EXPECT_EQ(keys(*ours), keys(*theirs));
  EXPECT_TRUE(torch::equal(ours->weight, theirs->weight));
  EXPECT_EQ(ours->options.groups(), 2);
  EXPECT_TRUE(ours->as<torch::nn::Conv2d>()) << "code that looks for libtorch's layers finds ours";
  EXPECT_EQ(Conv2d(3, 8, 1)->weight.size(0), 8);
}

TEST(Conv2d, EveryBackendIsLibtorchsLayerButForRounding) {
  const std::vector<torch::nn::Conv2dOptions> all = {
      torch::nn::Conv2dOptions(32, 32, 1),
      torch::nn::Conv2dOptions(32, 32, 3).padding(1).groups(4).bias(false),
      torch::nn::Conv2dOptions(32, 16, 3).stride(2).dilation(2).padding({2, 1}),
      torch::nn::Conv2dOptions(32, 16, 3).padding(torch::kSame),
      torch::nn::Conv2dOptions(32, 16, 3).padding(1).padding_mode(torch::kReflect)};
  for (const auto& options : all)
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      torch::manual_seed(1);
      const auto x = torch::randn({2, 32, 9, 9}).contiguous(format).requires_grad_();
      torch::manual_seed(5);
      torch::nn::Conv2d theirs(options);
      const auto want = torch::autograd::grad({theirs->forward(x).sin().sum()}, {x, theirs->weight});
      for (const auto backend : kBackends) {
        Conv2d ours = seeded(options, backend);
        const auto got = torch::autograd::grad({ours->forward(x).sin().sum()}, {x, ours->weight});
        for (std::size_t i = 0; i < want.size(); ++i)
          EXPECT_LE(relative_error(got[i], want[i]), testing::tolerance(DType::f32).relative_l2);
      }
    }
}

TEST(Conv2d, TakesOneImageWithoutABatchAndAnEmptyBatch) {
  for (const auto backend : kBackends) {
    Conv2d conv = seeded(torch::nn::Conv2dOptions(3, 4, 3), backend);
    EXPECT_EQ(conv->forward(torch::randn({3, 8, 8})).sizes(), at::IntArrayRef({4, 6, 6}));
    EXPECT_EQ(conv->forward(torch::randn({0, 3, 8, 8})).sizes(), at::IntArrayRef({0, 4, 6, 6}));
  }
}

int64_t kept_bytes(ConvolutionBackend backend) {
  Conv2d conv = seeded(torch::nn::Conv2dOptions(64, 64, 3).padding(1).bias(false), backend);
  const auto x = torch::randn({1, 64, 4, 4}).to(at::kBFloat16).requires_grad_();
  memory::Meter meter;
  const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, {.cache = false});
  const auto out = conv->forward(x);
  meter.forward_done();
  return meter.kept_bytes();
}

TEST(Conv2d, OnlyLibtorchsLayerKeepsA16BitCopyOfItsWeight) {
  constexpr int64_t kWeightBytes = 64 * 64 * 9 * 2;
  EXPECT_LT(kept_bytes(ConvolutionBackend::kFastest), kWeightBytes);
  EXPECT_LT(kept_bytes(ConvolutionBackend::kLibtorch), kWeightBytes);
  EXPECT_EQ(convolution_backend(Strategy::kStandard), ConvolutionBackend::kLibtorchLayer);
  EXPECT_EQ(convolution_backend(Strategy::kStoreY), ConvolutionBackend::kFastest);
}

TEST(Conv2d, InASequentialItIsOursThatRuns) {
  torch::nn::Sequential net(Conv2d(torch::nn::Conv2dOptions(64, 64, 3).padding(1).bias(false)));
  const auto x = torch::randn({1, 64, 4, 4}).to(at::kBFloat16).requires_grad_();
  memory::Meter meter;
  const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, {.cache = false});
  const auto out = net->forward(x);
  meter.forward_done();
  EXPECT_LT(meter.kept_bytes(), 64 * 64 * 9 * 2);
}

TEST(Conv2d, PrintsItsOptions) {
  std::ostringstream text;
  text << *Conv2d(3, 8, 1);
  EXPECT_EQ(text.str(), "palimpsest::nn::Conv2d(3, 8, kernel_size=[1, 1], stride=[1, 1])");
}

}  // namespace
}  // namespace palimpsest::nn
