#include "palimpsest/amp/precision.h"
#include "palimpsest/models/deeplab.h"
#include "palimpsest/models/efficientnet.h"
#include "palimpsest/models/inception.h"
#include "palimpsest/models/mobilenet_v3.h"
#include "palimpsest/models/resnet.h"
#include "palimpsest/models/resnet_preact.h"
#include "palimpsest/models/resnext_preact.h"
#include "palimpsest/models/torchvision_inception.h"
#include "tests/models/support.h"

#include <algorithm>
#include <ostream>

namespace palimpsest::models {
namespace {

constexpr int64_t kClasses = 5;

// A short network of every family, narrow where it can be: f64 convolutions are slow.
std::shared_ptr<nn::Model> build(const std::string& kind, int64_t output_stride,
                                 const nn::NormOptions& norm) {
  const bool segments = output_stride < 32;
  const BackboneOptions options{segments ? 0 : kClasses, output_stride, norm};
  if (kind == "inception_v2") return std::make_shared<Inception>(inception_v2(kind, 16), options);
  if (kind == "inception_v3") return std::make_shared<Inception>(inception_v3(kind, 16), options);
  // Shape by shape, MobileNetV3's first six blocks have every form that there is.
  if (kind == "mobile") {
    MobileNetV3Shape shape = mobilenet_v3_small();
    shape.blocks.resize(6);
    return std::make_shared<MobileNetV3>(shape, options);
  }
  if (kind == "small_preact") return std::make_shared<PreactResNet>(small_preact_resnet(kind, 1), options);
  if (kind == "large_preact")
    return std::make_shared<PreactResNet>(PreactResNetShape{kind, {2, 1, 1, 1}, 16}, options);
  if (kind == "torchvision_v1")
    return std::make_shared<TorchvisionInception>(googlenet_imagenet(16), options);
  if (kind == "torchvision_v3")
    return std::make_shared<TorchvisionInception>(inception_v3_imagenet(16), options);
  std::shared_ptr<Backbone> body;
  if (kind == "efficient") body = std::make_shared<EfficientNet>(kind, options);
  if (kind == "basic")
    body = std::make_shared<ResNet>(ResNetShape{kind, false, {1, 2, 1, 1}, 1, 64, 16}, options);
  if (kind == "bottleneck")
    body = std::make_shared<ResNet>(ResNetShape{kind, true, {2, 1, 1, 1}, 1, 64, 16}, options);
  if (kind == "grouped")
    body = std::make_shared<ResNet>(ResNetShape{kind, true, {1, 1, 1, 1}, 32, 4}, options);
  if (kind == "preact")
    body = std::make_shared<PreactResNeXt>(kind, std::array<int64_t, 4>{2, 1, 1, 1}, options);
  if (segments) return std::make_shared<DeepLabV3>(body, kClasses, norm);
  return body;
}

struct StrategyCase {
  const char* kind;
  int64_t output_stride = 32;
  nn::Activation activation = nn::Activation::kLeakyReLU;
  double activation_param = 0.01;
};

std::ostream& operator<<(std::ostream& stream, const StrategyCase& c) {
  return stream << c.kind << c.output_stride;
}

struct Step {
  at::Tensor logits;
  std::vector<std::pair<std::string, at::Tensor>> gradients, buffers;
};

// One forward and backward of a freshly seeded f64 network. `changed`: sets this strategy after construction.
Step step(const StrategyCase& c, nn::Strategy strategy, bool channels_last,
          std::optional<nn::Strategy> changed = std::nullopt) {
  torch::manual_seed(3);
  const auto model = build(c.kind, c.output_stride, {strategy, c.activation, c.activation_param});
  for (const auto& m : model->modules())
    if (auto* norm = m->as<nn::BatchNormActImpl>(); norm && changed) norm->options.strategy(*changed);
  model->to(torch::kFloat64);
  const int64_t side = std::string(c.kind) == "torchvision_v3" ? 107 : 64;  // of which it leaves 2 x 2 pixels
  auto images = torch::randn({2, 3, side, side}, torch::kFloat64);
  if (channels_last) images = images.contiguous(at::MemoryFormat::ChannelsLast);
  Step result;
  result.logits = model->forward(images);
  // Another weight for every logit: a sum alone would have no gradient through a normalization.
  const auto weights =
      torch::sin(torch::arange(result.logits.numel(), torch::kFloat64)).reshape(result.logits.sizes());
  (result.logits * weights).sum().backward();
  for (const auto& p : model->named_parameters()) result.gradients.emplace_back(p.key(), p.value().grad());
  for (const auto& b : model->named_buffers())
    result.buffers.emplace_back(b.key(), b.value().to(torch::kFloat64));
  return result;
}

class Strategies : public ::testing::TestWithParam<StrategyCase> {};

void expect_same(const Step& got, const Step& want, bool channels_last);

TEST_P(Strategies, GiveTheSameLogitsGradientsAndRunningStatistics) {
  for (const bool channels_last : {false, true}) {
    const auto want = step(GetParam(), nn::Strategy::kStandard, channels_last);
    for (const auto& name : nn::strategy_names()) {
      const auto strategy = nn::parse_strategy(name);
      // The other strategies differ from these in the tensors that the inner blocks save; one layout and one
      // head is enough for them.
      const bool main = strategy == nn::Strategy::kInplace2 || strategy == nn::Strategy::kStoreY ||
                        strategy == nn::Strategy::kInplaceBit;
      if (strategy == nn::Strategy::kInplaceBit && !kernels::has_branches(GetParam().activation))
        continue;  // then it is inplace_2
      if (name == "inplace" || strategy == nn::Strategy::kStandard ||
          !nn::fits(strategy, GetParam().activation) ||
          (!main && (channels_last || GetParam().output_stride != 32)))
        continue;
      SCOPED_TRACE(name);
      expect_same(step(GetParam(), strategy, channels_last), want, channels_last);
    }
  }
}

double error_of_tensor(const at::Tensor& got, const at::Tensor& want) {
  return (got - want).norm().item<double>() / std::max(want.norm().item<double>(), testing::kVanishingF64);
}

void expect_same(const Step& got, const Step& want, bool channels_last) {
  {
    EXPECT_LE(relative_error(got.logits, want.logits), kReorderedNetworkF64);
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (std::size_t i = 0; i < want.gradients.size(); ++i) {
      ASSERT_TRUE(got.gradients[i].second.defined()) << want.gradients[i].first;
      EXPECT_LE(error_of_tensor(got.gradients[i].second, want.gradients[i].second), kReorderedNetworkF64)
          << want.gradients[i].first << (channels_last ? ", channels-last" : ", NCHW");
    }
    for (std::size_t i = 0; i < want.buffers.size(); ++i) {
      EXPECT_LE(error_of_tensor(got.buffers[i].second, want.buffers[i].second), kReorderedNetworkF64)
          << want.buffers[i].first;
    }
  }
}

/// All pairs of strategies: a change after construction gives the network that is built with the new one.
TEST(Strategies, AChangeAfterConstructionGivesTheNetworkOfTheNewStrategy) {
  using nn::Activation;
  for (const char* kind : {"basic", "bottleneck"})
    for (const auto activation : {Activation::kReLU, Activation::kGELU, Activation::kSiLU, Activation::kMish,
                                  Activation::kLeakyReLU}) {
      const StrategyCase c{kind, 32, activation};
      std::vector<nn::Strategy> strategies;
      for (const auto& name : nn::strategy_names())
        if (name != "inplace" && nn::fits(nn::parse_strategy(name), activation))
          strategies.push_back(nn::parse_strategy(name));
      for (const auto to : strategies) {
        const auto want = step(c, to, false);
        for (const auto from : strategies) {
          SCOPED_TRACE(kind + (" " + nn::to_string(activation)) + ": " + nn::to_string(from) + " to " +
                       nn::to_string(to));
          if (from != to) expect_same(step(c, from, false, to), want, false);
        }
      }
    }
}

TEST(Strategies, AChangeThatCannotBeRightIsAnError) {
  const auto images = torch::randn({2, 3, 32, 32});
  const auto changed = [&](nn::Strategy from, const auto& change) {
    const auto model = build("basic", 32, {from, nn::Activation::kReLU});
    for (const auto& m : model->modules())
      if (auto* norm = m->as<nn::BatchNormActImpl>();
          norm && norm->options.activation() == nn::Activation::kReLU)
        change(*norm);
    return usage_error([&] { model->forward(images); });
  };
  const auto to_gelu = [](auto& norm) { norm.options.activation(nn::Activation::kGELU); };
  const auto to_inplace = [](auto& norm) { norm.options.strategy(nn::Strategy::kInplace2); };
  EXPECT_NE(changed(nn::Strategy::kStoreY, to_gelu).find("must keep 'relu', got 'gelu'"), std::string::npos);
  for (const auto from : {nn::Strategy::kStandard, nn::Strategy::kStoreY})
    EXPECT_NE(changed(from, to_inplace).find("relu"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Strategies,
    ::testing::Values(StrategyCase{"basic"}, StrategyCase{"bottleneck", 32, nn::Activation::kELU, 1},
                      StrategyCase{"grouped", 32, nn::Activation::kLeakyReLU, 0.2}, StrategyCase{"preact"},
                      StrategyCase{"basic", 8}, StrategyCase{"basic", 16}, StrategyCase{"bottleneck", 16},
                      StrategyCase{"preact", 8}, StrategyCase{"basic", 32, nn::Activation::kReLU},
                      StrategyCase{"bottleneck", 32, nn::Activation::kReLU},
                      StrategyCase{"preact", 32, nn::Activation::kReLU},
                      StrategyCase{"basic", 16, nn::Activation::kReLU},
                      StrategyCase{"basic", 32, nn::Activation::kGELU},
                      StrategyCase{"bottleneck", 16, nn::Activation::kSiLU},
                      StrategyCase{"preact", 32, nn::Activation::kGELUTanh},
                      StrategyCase{"basic", 32, nn::Activation::kSigmoid}, StrategyCase{"inception_v2"},
                      StrategyCase{"inception_v2", 32, nn::Activation::kReLU}, StrategyCase{"inception_v3"},
                      StrategyCase{"inception_v3", 32, nn::Activation::kGELU}, StrategyCase{"small_preact"},
                      StrategyCase{"large_preact"}, StrategyCase{"torchvision_v1"},
                      StrategyCase{"torchvision_v1", 32, nn::Activation::kReLU},
                      StrategyCase{"torchvision_v3"},
                      StrategyCase{"torchvision_v3", 32, nn::Activation::kSiLU},
                      StrategyCase{"efficient", 32, nn::Activation::kSiLU},
                      StrategyCase{"efficient", 16, nn::Activation::kSiLU}, StrategyCase{"efficient"},
                      StrategyCase{"mobile", 32, nn::Activation::kHardSwish}),
    [](const auto& info) {
      return std::string(info.param.kind) + "_" + nn::to_string(info.param.activation) + "_" +
             std::to_string(info.param.output_stride);
    });

TEST(Strategies, AreTheSameFunctionInEvalMode) {
  for (const auto& [kind, output_stride] : {std::pair{"basic", 32}, {"preact", 32}, {"bottleneck", 16}}) {
    at::Tensor logits[2];
    for (const auto strategy : {nn::Strategy::kStandard, nn::Strategy::kInplace2}) {
      torch::manual_seed(5);
      const auto model = build(kind, output_stride, nn::NormOptions{strategy});
      model->to(torch::kFloat64);
      const auto images = torch::randn({2, 3, 64, 64}, torch::kFloat64);
      model->forward(images);  // moves the running statistics
      model->eval();
      torch::NoGradGuard no_grad;
      const auto untouched = images.clone();
      auto& out = logits[strategy == nn::Strategy::kStandard ? 0 : 1];
      out = model->forward(images);
      EXPECT_TRUE(torch::equal(out, model->forward(images))) << kind << ": eval mode must not move anything";
      EXPECT_TRUE(torch::equal(images, untouched)) << kind << ": the images belong to the caller";
      // One image at a time gives the same rows, also where a batch of one cannot train.
      EXPECT_LE(relative_error(model->forward(images.slice(0, 1, 2)), out.slice(0, 1, 2)),
                kReorderedNetworkF64)
          << kind;
    }
    EXPECT_LE(relative_error(logits[1], logits[0]), kReorderedNetworkF64) << kind;
  }
}

TEST(Strategies, TheSameSeedGivesTheSameBytesTwice) {
  const auto a = step({"basic"}, nn::Strategy::kInplace2, false);
  const auto b = step({"basic"}, nn::Strategy::kInplace2, false);
  EXPECT_TRUE(torch::equal(a.logits, b.logits));
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_TRUE(torch::equal(a.gradients[i].second, b.gradients[i].second)) << a.gradients[i].first;
  }
}

/// The gradients of all parameters, as one tensor, of a step in `precision` from f32 parameters; without one
/// in f64.
at::Tensor gradient_in(const char* kind, int64_t output_stride, nn::Strategy strategy,
                       std::optional<amp::Precision> precision) {
  torch::manual_seed(3);
  const auto model = build(kind, output_stride, {strategy});
  // Eight images: a normalization of two values is a sign, whose gradient is all rounding.
  auto images = torch::randn({8, 3, 32, 32});
  if (!precision) {
    model->to(torch::kFloat64);
    images = images.to(torch::kFloat64);
  }
  at::Tensor logits;
  {
    const amp::PrecisionGuard guard(at::kCPU, precision.value_or(amp::Precision::kF32));
    logits = model->forward(images);
  }
  logits = logits.to(torch::kFloat64);
  // Scaled as a loss would be: unscaled f16 gradients would vanish.
  (logits * torch::sin(torch::arange(logits.numel(), torch::kFloat64)).reshape(logits.sizes()))
      .sum()
      .mul(8)
      .backward();
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : model->parameters())
    gradients.push_back(parameter.grad().flatten().to(torch::kFloat64));
  return torch::cat(gradients);
}

TEST(MixedPrecisionModels, StrategiesAreAsExactInSixteenBitsAsTheStandardLayers) {
  using amp::Precision;
  for (const auto& [kind, output_stride] : {std::pair{"basic", 16}, std::pair{"preact", 32}}) {
    const auto want = gradient_in(kind, output_stride, nn::Strategy::kStandard, std::nullopt);
    for (const auto precision : {Precision::kBF16, Precision::kF16, Precision::kF16Pseudo}) {
      const double standard =
          relative_error(gradient_in(kind, output_stride, nn::Strategy::kStandard, precision), want);
      EXPECT_LT(standard, precision == Precision::kBF16 ? testing::kBF16Gradients : testing::kF16Gradients)
          << kind;
      EXPECT_GT(standard, testing::kF16Gradients / 100) << "not computed in 16 bits";
      for (const auto strategy : {nn::Strategy::kInplace2, nn::Strategy::kStoreY}) {
        const double error = relative_error(gradient_in(kind, output_stride, strategy, precision), want);
        EXPECT_LE(error, 1.5 * standard)
            << kind << ", " << nn::to_string(strategy) << " in " << amp::to_string(precision);
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest::models
