#include "palimpsest/nn/batch_norm_act_conv2d.h"

#include "palimpsest/memory/meter.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

TEST(BatchNormActConv2d, IsTheNormalizationThenTheConvolution) {
  for (const auto& name : strategy_names()) {
    BatchNormActConv2d block(BatchNormActOptions(4).strategy(parse_strategy(name)),
                             torch::nn::Conv2dOptions(4, 6, 3).padding(1).bias(false));
    block->to(torch::kFloat64);
    EXPECT_EQ(keys(*block),
              (std::vector<std::string>{"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
                                        "norm.num_batches_tracked", "conv.weight"}));
    auto x = leaf({3, 4, 5, 6}), x2 = leaf({3, 4, 5, 6});
    const auto got = block->forward(x * 1);
    const auto want =
        torch::conv2d(torch::leaky_relu(torch::batch_norm(x2, {}, {}, {}, {}, true, 0.1, 1e-5, false), 0.01),
                      block->conv->weight, {}, 1, 1);
    EXPECT_LE(relative_error(got, want), kSameMaths) << name;
    got.sin().sum().backward();
    want.sin().sum().backward();
    EXPECT_LE(relative_error(x.grad(), x2.grad()), kSameMaths) << name;
  }
}

TEST(BatchNormActConv2d, SavesOneFullSizeTensorForAnActivationThatCannotBeInverted) {
  BatchNormActConv2d block(BatchNormActOptions(64).strategy(Strategy::kStoreY).activation(Activation::kReLU),
                           torch::nn::Conv2dOptions(64, 64, 1).bias(false));
  at::Tensor x = torch::randn({2, 64, 32, 32}).requires_grad_() * 1;
  const auto bytes = static_cast<double>(x.nbytes());
  memory::Meter meter;
  const auto out = block->forward(std::move(x));
  meter.forward_done();
  // The result, beside the saved tensor, which took the place of x.
  EXPECT_LE(static_cast<double>(meter.kept_bytes()), 1.1 * bytes);
}

TEST(BatchNormActConv2d, RefusesAConvolutionOfOtherChannels) {
  EXPECT_NE(usage_error([] {
              BatchNormActConv2d(4, torch::nn::Conv2dOptions(5, 6, 3));
            }).find("of the normalization, 4, got in_channels = 5"),
            std::string::npos);
}

}  // namespace
}  // namespace palimpsest::nn
