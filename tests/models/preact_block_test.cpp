#include "palimpsest/models/preact_block.h"

#include "palimpsest/memory/meter.h"
#include "tests/models/support.h"

namespace palimpsest::models {
namespace {

constexpr double kShare = 0.3;

/// A bottleneck of 32 inner and 64 outer channels that projects, with dropout before its last convolution.
std::shared_ptr<PreactBlock> bottleneck(const nn::NormOptions& norm, double dropout, int64_t in = 48) {
  torch::manual_seed(3);
  return std::make_shared<PreactBlock>(
      PreactBlock::Options{in, {{32}, {32, 3}, {64}}, norm, /*activated=*/false, dropout});
}

struct Pass {
  at::Tensor out, dx, dweight;
};

/// A forward and backward pass in f64; dropout draws after this seed.
Pass pass(PreactBlock& block, bool channels_last, uint64_t seed) {
  block.to(torch::kFloat64);
  torch::manual_seed(7);
  auto x = torch::randn({3, 48, 6, 5}, torch::kFloat64);
  if (channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
  x.set_requires_grad(true);
  torch::manual_seed(seed);
  const auto out = block.forward(x.clone());
  const auto weight = block.named_parameters()["convs.conv3.weight"];
  const auto loss =
      (out * torch::sin(torch::arange(out.numel(), torch::kFloat64)).reshape(out.sizes())).sum();
  const auto g = torch::autograd::grad({loss}, {x, weight});
  return {out.detach(), g[0], g[1]};
}

// Under `standard` the block runs at::feature_dropout between libtorch's layers, which is the reference.
TEST(PreactBlockDropout, DropsTheChannelsThatLibtorchDropsUnderEveryStrategy) {
  for (const auto activation : {nn::Activation::kLeakyReLU, nn::Activation::kReLU, nn::Activation::kSiLU})
    for (const bool channels_last : {false, true}) {
      const auto want = pass(*bottleneck({nn::Strategy::kStandard, activation}, kShare), channels_last, 11);
      for (const auto& name : nn::strategy_names()) {
        const auto strategy = nn::parse_strategy(name);
        if (!nn::fits(strategy, activation)) continue;
        const auto got = pass(*bottleneck({strategy, activation}, kShare), channels_last, 11);
        EXPECT_LE(relative_error(got.out, want.out), kReorderedNetworkF64) << name;
        EXPECT_LE(relative_error(got.dx, want.dx), kReorderedNetworkF64) << name;
        EXPECT_LE(relative_error(got.dweight, want.dweight), kReorderedNetworkF64) << name;
      }
    }
}

TEST(PreactBlockDropout, FollowsTheGeneratorInTrainingOnly) {
  const nn::NormOptions norm{nn::Strategy::kStoreY, nn::Activation::kReLU};
  const auto block = bottleneck(norm, kShare);
  EXPECT_TRUE(torch::equal(pass(*block, true, 11).out, pass(*block, true, 11).out));
  EXPECT_FALSE(torch::equal(pass(*block, true, 11).out, pass(*block, true, 12).out));
  const auto plain = bottleneck(norm, 0);
  for (auto* b : {block.get(), plain.get()}) {
    b->eval();
    for (auto& buffer : b->named_buffers())  // the passes above moved them
      if (buffer.key().ends_with("running_var")) {
        buffer.value().fill_(1);
      } else if (buffer.key().ends_with("running_mean")) {
        buffer.value().zero_();
      }
  }
  EXPECT_LE(relative_error(pass(*block, true, 11).out, pass(*plain, true, 12).out), kReorderedNetworkF64);
}

// One factor per image and channel; `standard` saves the product.
TEST(PreactBlockDropout, KeepsAFactorPerImageAndChannel) {
  const auto kept = [](nn::Strategy strategy, nn::Activation activation, double dropout) {
    const auto block = bottleneck({strategy, activation}, dropout);
    auto x = torch::randn({4, 48, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast);
    memory::Meter meter;
    const auto out = block->forward(x.clone());
    meter.forward_done();
    return meter.kept_bytes();
  };
  const auto added = [&](nn::Strategy strategy, nn::Activation activation) {
    return kept(strategy, activation, kShare) - kept(strategy, activation, 0);
  };
  const int64_t factors = 4 * 32 * 4, product = factors * 16 * 16;
  EXPECT_LE(added(nn::Strategy::kInplace2, nn::Activation::kLeakyReLU), 2 * factors);
  EXPECT_LE(added(nn::Strategy::kStoreY, nn::Activation::kReLU), 2 * factors);
  EXPECT_GE(added(nn::Strategy::kStandard, nn::Activation::kReLU), product);
}

// mod6 and mod7 of the form A2; the body of the segmentation network has it, too.
TEST(PreactBlockDropout, IsInWideResNetsOfTheFormA2) {
  torch::manual_seed(1);
  const auto images = torch::randn({2, 3, 32, 32});
  const auto model = make("wide_resnet16_a2", {.classes = 3});
  expect_dropout(*model, images, "wide_resnet16_a2");
  model->train();
  const auto dropless = make("wide_resnet16_a2", {.classes = 3, .dropout = 0});
  const auto pooled = make("wide_resnet16", {.classes = 3});
  const torch::NoGradGuard no_grad;
  for (const auto& network : {dropless, pooled}) {
    const auto logits = network->forward(images);
    EXPECT_TRUE(torch::equal(logits, network->forward(images)));
  }
  EXPECT_TRUE(drops_out("wide_resnet38_a2") && drops_out("deeplabv3_wide_resnet38"));
  EXPECT_FALSE(drops_out("wide_resnet38") || drops_out("deeplabv3_resnext50_preact"));
  EXPECT_NO_THROW(make("deeplabv3_wide_resnet16", {.classes = 3, .dropout = 0}));
}

}  // namespace
}  // namespace palimpsest::models
