#include "palimpsest/models/registry.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "tests/models/support.h"

#include <algorithm>

namespace palimpsest::models {
namespace {

void expect_contains(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(Registry, EveryBackboneButTheDenseAndTheSmallOnesHasASegmentationTwin) {
  const auto all = names();
  EXPECT_EQ(all.size(), 70u);
  for (const auto& name : all) {
    if (name.starts_with("deeplabv3_")) continue;
    constexpr std::string_view kOfImages[] = {"alexnet",          "vgg16",           "googlenet",
                                              "inception_v2",     "inception_v3",    "resnet50_preact",
                                              "resnet101_preact", "resnet152_preact"};
    const bool classifies = name.starts_with("densenet") || name.find("_cifar") != std::string::npos ||
                            name.ends_with("_a2") ||
                            std::count(std::begin(kOfImages), std::end(kOfImages), name) > 0;
    EXPECT_EQ(std::count(all.begin(), all.end(), "deeplabv3_" + name), !classifies) << name;
  }
}

TEST(Registry, EveryOptionHasADefault) {
  const auto model = make("resnet18_narrow");
  EXPECT_EQ(model->forward(torch::randn({2, 3, 32, 32})).sizes(), at::IntArrayRef({2, 1000}));
}

TEST(Registry, AnUnknownNameGetsTheNearestOne) {
  expect_contains(usage_error([] { make("resnet-50", {}); }),
                  "unknown model 'resnet-50'; did you mean 'resnet50'?");
  expect_contains(usage_error([] { make("deeplabv3_resnet19", {}); }), "did you mean 'deeplabv3_resnet18'?");
  expect_contains(usage_error([] { make("deeplabv3_", {}); }), "unknown model 'deeplabv3_'");
}

TEST(Registry, AnOptionThatDoesNotFitIsNamedWithItsValue) {
  ModelOptions options;
  options.output_stride = 8;
  expect_contains(usage_error([&] { make("resnet18", options); }), "takes no output stride, got 8");
  options.output_stride = 4;
  expect_contains(usage_error([&] { make("deeplabv3_resnet18", options); }), "8 or 16, got 4");
  expect_contains(usage_error([&] { make("resnet18", {.classes = -1}); }), "or 0 for no classifier, got -1");
  options = {};
  options.activation_param = -1;
  expect_contains(usage_error([&] { make("resnet18", options); }), "slope in [0, 1], got -1");
}

TEST(Registry, AModelSaysWhetherItSegmentsAndHasTheClassesAskedFor) {
  ModelOptions options;
  options.classes = 4;
  const auto classifier = make("resnet18", options);
  EXPECT_FALSE(classifier->is_segmentation());
  EXPECT_EQ(classifier->forward(torch::randn({2, 3, 40, 48})).sizes(), at::IntArrayRef({2, 4}));
  EXPECT_TRUE(make("deeplabv3_resnet18", options)->is_segmentation());
}

TEST(Registry, ImagesOfAnotherShapeOrTypeAreRefused) {
  for (const char* name : {"resnet18", "resnext50_preact", "deeplabv3_resnet18"}) {
    const auto model = make(name, {});
    const auto message = [&](const at::Tensor& images) {
      return usage_error([&] { model->forward(images); });
    };
    expect_contains(message(torch::randn({2, 1, 64, 64})), "got 1 channels: shape [2, 1, 64, 64]");
    expect_contains(message(torch::randn({3, 64, 64})),
                    "(N, 3, H, W) with values of a floating type, got 3 dim");
    expect_contains(message(torch::zeros({2, 3, 64, 64}, torch::kUInt8)), "got values of type Byte");
    expect_contains(message(torch::zeros({2, 3, 0, 64})), "got images without pixels: shape [2, 3, 0, 64]");
  }
}

TEST(Registry, TheSeedDecidesTheWeightsAndTheStrategyDoesNot) {
  const auto first_weights = [](uint64_t seed, nn::Strategy strategy) {
    torch::manual_seed(seed);
    ModelOptions options;
    options.strategy = strategy;
    std::vector<at::Tensor> all;
    for (const auto& p : make("resnet18", options)->parameters()) all.push_back(p.detach().flatten());
    return torch::cat(all);
  };
  const auto a = first_weights(1, nn::Strategy::kInplace2);
  EXPECT_TRUE(torch::equal(a, first_weights(1, nn::Strategy::kInplace2)));
  EXPECT_TRUE(torch::equal(a, first_weights(1, nn::Strategy::kStandard)));
  EXPECT_FALSE(torch::equal(a, first_weights(2, nn::Strategy::kInplace2)));
}

// torchvision: normal, fan-out, gain of the activation. 3x3 of 512 channels: 2.36 M values, so 1 % is 15
// sigma.
TEST(Registry, ConvolutionsStartWithKaimingsDeviation) {
  torch::manual_seed(1);
  const auto deviation = [](nn::Activation activation, double param) {
    ModelOptions options;
    options.activation = activation;
    options.activation_param = param;
    const auto model = make("resnet18", options);
    return model->named_parameters()["layer4.1.conv2.weight"].std().item<double>();
  };
  const double unit = 1 / std::sqrt(512.0 * 9);
  EXPECT_NEAR(deviation(nn::Activation::kLeakyReLU, 0.01) / unit, std::sqrt(2 / 1.0001),
              testing::kDrawnDeviation);
  EXPECT_NEAR(deviation(nn::Activation::kLeakyReLU, 0.5) / unit, std::sqrt(2 / 1.25),
              testing::kDrawnDeviation);
  EXPECT_NEAR(deviation(nn::Activation::kELU, 1) / unit, std::sqrt(2), testing::kDrawnDeviation);
  EXPECT_NEAR(deviation(nn::Activation::kIdentity, 0) / unit, 1, testing::kDrawnDeviation);
}

/// Expects every convolution without bias to have the deviation gain / sqrt(fan_of(fan-in, fan-out)). That of n
/// drawn values is off by 1 / sqrt(2 n), relatively.
template <class Fan>
void expect_deviations(const char* name, const Fan& fan_of) {
  torch::manual_seed(1);
  const auto model = make(name);
  int64_t convolutions = 0;
  for (const auto& module : model->named_modules("", /*include_self=*/false)) {
    const auto* convolution = module.value()->as<torch::nn::Conv2d>();
    if (!convolution || convolution->bias.defined()) continue;
    const at::Tensor& weight = convolution->weight;
    const auto drawn = static_cast<double>(weight.numel());
    const double fan =
        fan_of(drawn / static_cast<double>(weight.size(0)), drawn / static_cast<double>(weight.size(1)));
    const double deviation = std::sqrt(weight.detach().to(at::kDouble).square().mean().item<double>());
    EXPECT_NEAR(deviation / std::sqrt(2 / 1.0001 / fan), 1, 6 / std::sqrt(2 * drawn))
        << name << " " << module.key();
    ++convolutions;
  }
  EXPECT_GT(convolutions, 15) << name;
}

TEST(Registry, EveryConvolutionStartsWithKaimingsDeviation) {
  for (const char* name : {"densenet_bc40_k12", "deeplabv3_resnet18"})
    expect_deviations(name, [](double /*fan_in*/, double fan_out) { return fan_out; });
}

// The In-Place ABN paper's release: xavier_normal_ with the gain of leaky ReLU; xavier_uniform_ of gain 0.1 for the
// classifier, whose bound is the deviation times sqrt(3).
TEST(Registry, ThePapersNetworksStartByGlorotsRules) {
  for (const char* name :
       {"resnext50_preact", "wide_resnet16", "wide_resnet16_a2", "densenet264_deep_stem"}) {
    expect_deviations(name, [](double fan_in, double fan_out) { return (fan_in + fan_out) / 2; });
    const auto parameters = make(name)->named_parameters();
    const std::string classifier = parameters.contains("fc.weight") ? "fc" : "classifier";
    const at::Tensor weight = parameters[classifier + ".weight"].detach();
    const double bound = 0.1 * std::sqrt(6.0 / static_cast<double>(1000 + weight.size(1)));
    EXPECT_LE(weight.abs().max().item<double>(), bound * (1 + 1e-6)) << name;
    EXPECT_NEAR(weight.std().item<double>() * std::sqrt(3) / bound, 1, testing::kDrawnDeviation) << name;
    EXPECT_EQ(parameters[classifier + ".bias"].abs().max().item<double>(), 0) << name;
  }
}

TEST(Registry, OptionsOfOtherNetworksAreRefused) {
  expect_contains(usage_error([] { make("resnet18", {.dropout = 0.2}); }), "takes no dropout, got 0.2");
  expect_contains(usage_error([] { make("deeplabv3_efficientnet_b0", {.dropout = 0.2}); }),
                  "takes no dropout");
  expect_contains(usage_error([] { make("wide_resnet16", {.dropout = 0.2}); }), "takes no dropout");
  expect_contains(usage_error([] { make("efficientnet_b0", {.dropout = 1}); }), "dropout in [0, 1), got 1");
  expect_contains(usage_error([] { make("mobilenet_v3_small", {.stochastic_depth = 0.1}); }),
                  "takes no stochastic depth, got 0.1");
  expect_contains(usage_error([] { make("resnet18", {.pre_activation = false}); }),
                  "no post-activation order");
}

TEST(Registry, TheDefaultActivationIsThePapers) {
  EXPECT_EQ(default_activation("resnet50"), nn::Activation::kLeakyReLU);
  EXPECT_EQ(default_activation("efficientnet_b0"), nn::Activation::kSiLU);
  EXPECT_EQ(default_activation("deeplabv3_mobilenet_v3_large"), nn::Activation::kHardSwish);
}

// torchvision's rules: deviation sqrt(2 / (k k C_out)) for convolutions, those of squeeze and excitation too;
// uniform in +-1 / sqrt(classes), or deviation 0.01, for linear layers.
TEST(Registry, MobileNetworksStartWithTorchvisionsDeviations) {
  torch::manual_seed(1);
  const auto deviation = [](const nn::Model& model, const std::string& key) {
    return model.named_parameters()[key].std().item<double>();
  };
  const auto efficient = make("efficientnet_b0"), mobile = make("mobilenet_v3_large");
  const double drawn = testing::kDrawnDeviation;
  EXPECT_NEAR(deviation(*efficient, "features.8.0.weight") / std::sqrt(2.0 / 1280), 1, drawn);
  EXPECT_NEAR(deviation(*efficient, "features.7.0.block.2.fc2.weight") / std::sqrt(2.0 / 1152), 1, drawn);
  EXPECT_NEAR(deviation(*efficient, "classifier.1.weight") / std::sqrt(1 / (3.0 * 1000)), 1, drawn);
  EXPECT_NEAR(deviation(*mobile, "features.16.0.weight") / std::sqrt(2.0 / 960), 1, drawn);
  EXPECT_NEAR(deviation(*mobile, "classifier.0.weight") / 0.01, 1, drawn);
  EXPECT_NEAR(deviation(*mobile, "classifier.3.weight") / 0.01, 1, drawn);
  EXPECT_EQ(mobile->named_parameters()["classifier.3.bias"].abs().sum().item<double>(), 0);
}

TEST(Registry, TheDefaultStrategyFitsTheActivation) {
  using nn::Activation;
  using nn::Strategy;
  const auto strategy_of = [](const std::string& name, const ModelOptions& options) {
    for (const auto& m : make(name, options)->modules())
      if (const auto* norm = m->as<nn::BatchNormActImpl>()) return norm->options.strategy();
    return Strategy::kStandard;
  };
  for (const char* name : {"resnet18_narrow", "deeplabv3_resnet18_narrow"}) {
    EXPECT_EQ(strategy_of(name, {.classes = 2}), Strategy::kInplace2);
    EXPECT_EQ(strategy_of(name, {.classes = 2, .activation = Activation::kELU}), Strategy::kInplace2);
    EXPECT_EQ(strategy_of(name, {.classes = 2, .activation = Activation::kReLU}), Strategy::kStoreY);
  }
  EXPECT_EQ(strategy_of("mobilenet_v3_small", {.classes = 2}), Strategy::kStoreY);
  EXPECT_EQ(strategy_of("mobilenet_v3_small", {.classes = 2, .activation = Activation::kLeakyReLU}),
            Strategy::kInplace2);
  const ModelOptions given{.classes = 2, .strategy = Strategy::kInplace2, .activation = Activation::kReLU};
  EXPECT_THROW(make("resnet18_narrow", given), Error);
}

}  // namespace
}  // namespace palimpsest::models
