#include "palimpsest/ops/concat_abn_conv.h"

#include "palimpsest/memory/counting_allocator.h"
#include "tests/support/error_of.h"
#include "tests/support/relative_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace palimpsest::ops::concat_tests {
namespace {

using testing::error_of;
using testing::relative_error;
using Tensors = std::vector<at::Tensor>;

const ConvolutionOptions kPointwise{{1, 1}, {0, 0}, {1, 1}, 1};

/// Two features, weight and bias of the normalization, and the weight of a 1x1 convolution.
Tensors operands() {
  torch::manual_seed(4);
  Tensors all{torch::randn({2, 3, 6, 7}), torch::randn({2, 5, 6, 7}), torch::rand(8) + 0.5, torch::randn(8),
              torch::randn({4, 8, 1, 1})};
  for (at::Tensor& t : all) t.set_requires_grad(true);
  return all;
}

NormalizationTensors norm_of(const Tensors& t) {
  return {t[2], t[3], torch::zeros(8), torch::ones(8)};
}

using Block = std::function<at::Tensor(const Tensors&)>;

/// The output, then the gradients of the features and of the operands from `first` on.
Tensors run(const Block& block, std::size_t first) {
  Tensors leaves = operands();
  const at::Tensor out = block(leaves);
  Tensors inputs{leaves[0], leaves[1]};
  inputs.insert(inputs.end(), leaves.begin() + static_cast<std::ptrdiff_t>(first), leaves.end());
  Tensors all = torch::autograd::grad({out.square().sum()}, inputs);
  all.insert(all.begin(), out.detach());
  return all;
}

TEST(ConcatAbnConv, HasTheBytesOfAbnConvBehindAConcatenation) {
  for (const auto activation : {Activation::kReLU, Activation::kLeakyReLU, Activation::kSiLU}) {
    AbnOptions options;
    options.activation = activation;
    options.saved = Saved::kInput;
    const Tensors want = run(
        [&](const Tensors& t) {
          return abn_conv(torch::cat({t[0], t[1]}, 1), norm_of(t), t[4], {}, kPointwise, options);
        },
        2);
    options.saved = Saved::kOutput;  // ignored
    const Tensors got = run(
        [&](const Tensors& t) {
          return concat_abn_conv({t[0], t[1]}, norm_of(t), t[4], kPointwise, options);
        },
        2);
    for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << "result " << i;
  }
}

TEST(ConcatAbnConv, WithoutNormalizationIsAConvolution) {
  const Tensors want = run([](const Tensors& t) { return at::conv2d(torch::cat({t[0], t[1]}, 1), t[4]); }, 4);
  const Tensors got =
      run([](const Tensors& t) { return concat_abn_conv({t[0], t[1]}, {}, t[4], kPointwise); }, 4);
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(relative_error(got[i], want[i]), testing::kReorderedF32) << "result " << i;
}

TEST(ConcatAbnConv, PoolsBeforeTheConvolutionWithTheResultsOfPoolingBehindIt) {
  AbnOptions options;
  options.activation = Activation::kReLU;
  options.saved = Saved::kInput;
  const Tensors want = run(
      [&](const Tensors& t) {
        return at::avg_pool2d(
            abn_conv(torch::cat({t[0], t[1]}, 1), norm_of(t), t[4], {}, kPointwise, options), 2);
      },
      2);
  const Tensors got = run(
      [&](const Tensors& t) {
        return concat_abn_conv({t[0], t[1]}, norm_of(t), t[4], kPointwise, options, /*pool=*/true);
      },
      2);
  EXPECT_EQ(got[0].sizes(), at::IntArrayRef({2, 4, 3, 3}));
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_LE(relative_error(got[i], want[i]), testing::kReorderedF32) << "result " << i;
}

TEST(ConcatAbnConv, SavesNoTensorOfItsOwn) {
  const auto live = [] { return memory::memory_stats().current_bytes; };
  const Tensors t = operands();
  const NormalizationTensors norm = norm_of(t);
  const int64_t before = live();
  const at::Tensor out = concat_abn_conv({t[0], t[1]}, norm, t[4], kPointwise);
  const int64_t vectors = 2 * 8 * 8;  // mean and 1 / std
  EXPECT_LE(live() - before, static_cast<int64_t>(out.nbytes()) + vectors);
}

TEST(ConcatAbnConv, TakesFeaturesOfAnotherDtypeThanTheWeights) {
  Tensors t = operands();
  for (std::size_t i = 0; i < 2; ++i) t[i] = t[i].detach().to(at::kBFloat16).set_requires_grad(true);
  const auto of_block = [&](const at::Tensor& out) {
    return torch::autograd::grad({out.square().sum()}, {t[0], t[1], t[2], t[3], t[4]});
  };
  AbnOptions options;
  options.saved = Saved::kInput;
  const auto want =
                 of_block(abn_conv(torch::cat({t[0], t[1]}, 1), norm_of(t), t[4], {}, kPointwise, options)),
             got = of_block(concat_abn_conv({t[0], t[1]}, norm_of(t), t[4], kPointwise, options));
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
}

TEST(ConcatAbnConv, TakesFeaturesThatLibtorchNegatesLater) {
  const at::NoGradGuard no_grad;
  const Tensors t = operands();
  const at::Tensor all = at::_neg_view(torch::cat({t[0], t[1]}, 1));
  const Tensors features{all.narrow(1, 0, 3), all.narrow(1, 3, 5)};
  EXPECT_TRUE(concat_abn_conv(features, norm_of(t), t[4], kPointwise)
                  .equal(concat_abn_conv({-t[0], -t[1]}, norm_of(t), t[4], kPointwise)));
}

TEST(ConcatAbnConv, RefusesWhatDoesNotFitAndASecondDerivative) {
  const Tensors t = operands();
  const auto refused = [](const std::function<void()>& call) {
    return error_of(call).find("[concat_abn_conv]") != std::string::npos;
  };
  EXPECT_TRUE(refused([&] { concat_abn_conv({}, norm_of(t), t[4], kPointwise); }));
  const at::Tensor out = concat_abn_conv({t[0], t[1]}, norm_of(t), t[4], kPointwise);
  EXPECT_TRUE(
      refused([&] { torch::autograd::grad({out.square().sum()}, {t[0]}, {}, true, /*create_graph=*/true); }));
}

}  // namespace
}  // namespace palimpsest::ops::concat_tests
