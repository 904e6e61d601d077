// The networks for images of 32 pixels: AlexNet, VGG, GoogLeNet, Inception v2 and v3, pre-activation ResNet.
#include "palimpsest/amp/precision.h"
#include "palimpsest/memory/meter.h"
#include "tests/models/support.h"

#include <array>

namespace palimpsest::models {
namespace {

constexpr const char* kPlain[] = {"alexnet_cifar_narrow", "vgg16_cifar_narrow", "googlenet_cifar_narrow"};
constexpr const char* kNormalized[] = {"inception_v2_cifar_narrow", "inception_v3_cifar_narrow",
                                       "resnet29_preact_cifar"};

std::shared_ptr<nn::Model> small(const std::string& name, int64_t classes = 10) {
  ModelOptions options;
  options.classes = classes;
  return make(name, options);
}

int64_t parameters(const std::string& name, int64_t classes) {
  int64_t count = 0;
  for (const auto& parameter : small(name, classes)->parameters()) count += parameter.numel();
  return count;
}

// A convolution with a bias, or without one and with a normalization behind it.
int64_t biased(int64_t in, int64_t out, int64_t taps) {
  return in * out * taps + out;
}
int64_t normalized(int64_t in, int64_t out, int64_t taps) {
  return in * out * taps + 2 * out;
}

int64_t alexnet_parameters(int64_t d, int64_t classes) {
  return biased(3, 96 / d, 25) + biased(96 / d, 256 / d, 25) + biased(256 / d, 384 / d, 9) +
         biased(384 / d, 384 / d, 9) + biased(384 / d, 256 / d, 9) + biased(2 * 2 * 256 / d, 1024, 1) +
         biased(1024, 1024, 1) + biased(1024, classes, 1);
}

int64_t vgg16_convolutions(int64_t d) {
  int64_t total = 0, in = 3;
  for (const int64_t c : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512})
    total += biased(in, c / d, 9), in = c / d;
  return total;
}

using Widths = std::array<int64_t, 6>;

int64_t googlenet_parameters(int64_t d, int64_t classes) {
  int64_t total = biased(3, 64 / d, 9) + biased(64 / d, 64 / d, 1) + biased(64 / d, 192 / d, 9), in = 192 / d;
  for (auto [a, b, c, e, f, g] :
       {Widths{64, 96, 128, 16, 32, 32}, Widths{128, 128, 192, 32, 96, 64}, Widths{192, 96, 208, 16, 48, 64},
        Widths{160, 112, 224, 24, 64, 64}, Widths{128, 128, 256, 24, 64, 64},
        Widths{112, 144, 288, 32, 64, 64}, Widths{256, 160, 320, 32, 128, 128},
        Widths{256, 160, 320, 32, 128, 128}, Widths{384, 192, 384, 48, 128, 128}}) {
    total += biased(in, a / d, 1) + biased(in, b / d, 1) + biased(b / d, c / d, 9) + biased(in, e / d, 1) +
             biased(e / d, f / d, 25) + biased(in, g / d, 1);
    in = (a + c + f + g) / d;
  }
  return total + biased(in, classes, 1);
}

// Rows: 1x1; 3x3 behind a reduction; two 3x3 behind one; behind the pooling. 0: no such branch, stride 2.
int64_t inception_v2_parameters(int64_t d, int64_t classes) {
  int64_t total = normalized(3, 64 / d, 9) + normalized(64 / d, 64 / d, 1) + normalized(64 / d, 192 / d, 9),
          in = 192 / d;
  for (auto [a, b, c, e, f, g] :
       {Widths{64, 64, 64, 64, 96, 32}, Widths{64, 64, 96, 64, 96, 64}, Widths{0, 128, 160, 64, 96, 0},
        Widths{224, 64, 96, 96, 128, 128}, Widths{192, 96, 128, 96, 128, 128},
        Widths{160, 128, 160, 128, 160, 128}, Widths{96, 128, 192, 160, 192, 128},
        Widths{0, 128, 192, 192, 256, 0}, Widths{352, 192, 320, 160, 224, 128},
        Widths{352, 192, 320, 192, 224, 128}}) {
    total += normalized(in, a / d, 1) + normalized(in, b / d, 1) + normalized(b / d, c / d, 9) +
             normalized(in, e / d, 1) + normalized(e / d, f / d, 9) + normalized(f / d, f / d, 9) +
             normalized(in, g / d, 1);
    in = (a + c + f + g) / d + (g == 0 ? in : 0);
  }
  return total + biased(in, classes, 1);
}

int64_t preact_resnet_parameters(int64_t blocks, int64_t classes) {
  int64_t total = 3 * 16 * 9, in = 16;
  for (const int64_t w : {16, 32, 64})
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t out = 4 * w;
      total += in * w + 9 * w * w + w * out + 2 * (in + w + w) + (b == 0 ? in * out : 0);
      in = out;
    }
  return total + 2 * in + biased(in, classes, 1);
}

TEST(SmallNetworks, HaveTheParametersOfTheirFormulas) {
  for (const int64_t classes : {10, 7}) {
    EXPECT_EQ(parameters("alexnet_cifar", classes), alexnet_parameters(1, classes));
    EXPECT_EQ(parameters("alexnet_cifar_narrow", classes), alexnet_parameters(2, classes));
    for (const auto& [name, d] : {std::pair{"vgg16_cifar", 1}, {"vgg16_cifar_narrow", 4}})
      EXPECT_EQ(parameters(name, classes), vgg16_convolutions(d) + biased(512 / d, 512, 1) +
                                               biased(512, 512, 1) + biased(512, classes, 1));
    EXPECT_EQ(parameters("googlenet_cifar", classes), googlenet_parameters(1, classes));
    EXPECT_EQ(parameters("googlenet_cifar_narrow", classes), googlenet_parameters(4, classes));
    EXPECT_EQ(parameters("inception_v2_cifar", classes), inception_v2_parameters(1, classes));
    EXPECT_EQ(parameters("inception_v2_cifar_narrow", classes), inception_v2_parameters(4, classes));
    EXPECT_EQ(parameters("resnet29_preact_cifar", classes), preact_resnet_parameters(3, classes));
  }
  // Counted elsewhere: VGG-16's convolutions, torchvision's Inception v3 without its auxiliary classifier,
  // whose convolutions are these to the last, and the paper's 1.7 M of ResNet-164.
  EXPECT_EQ(vgg16_convolutions(1), 14714688);
  EXPECT_EQ(parameters("inception_v3_cifar", 1000), 23834568);
  EXPECT_EQ(parameters("resnet164_preact_cifar", 10), preact_resnet_parameters(18, 10));
  EXPECT_NEAR(static_cast<double>(preact_resnet_parameters(18, 10)) / 1e6, 1.7, 0.05);
}

TEST(SmallNetworks, TakeImagesOfAnySizeThatTheirPoolingsLeaveSomethingOf) {
  for (const auto* list : {&kPlain, &kNormalized})
    for (const char* name : *list) {
      const auto model = small(name, 5);
      EXPECT_FALSE(model->is_segmentation());
      for (const auto& [height, width] : {std::pair{32, 32}, {40, 51}})
        EXPECT_EQ(model->forward(torch::randn({2, 3, height, width})).sizes(), at::IntArrayRef({2, 5}))
            << name;
      EXPECT_NE(usage_error([&] { model->forward(torch::randn({2, 1, 32, 32})); }).find("(N, 3, H, W)"),
                std::string::npos);
    }
  const auto message =
      usage_error([] { small("vgg16_cifar_narrow")->forward(torch::randn({2, 3, 31, 40})); });
  EXPECT_NE(message.find("at least 32 pixels across"), std::string::npos) << message;
  EXPECT_NE(message.find("31 x 40"), std::string::npos) << message;
}

TEST(SmallNetworks, WithoutNormalizationTakeNoStrategyButStandard) {
  for (const char* name : kPlain) {
    EXPECT_FALSE(normalizes(name)) << name;
    ModelOptions options;
    options.strategy = nn::Strategy::kStoreY;
    const auto message = usage_error([&] { make(name, options); });
    EXPECT_NE(message.find("has no normalizations"), std::string::npos) << message;
    EXPECT_NE(message.find("got 'store_y'"), std::string::npos) << message;
    options.strategy = nn::Strategy::kStandard;
    EXPECT_NO_THROW(make(name, options));
  }
  for (const char* name : kNormalized) EXPECT_TRUE(normalizes(name)) << name;
  EXPECT_TRUE(normalizes("resnet18"));
}

TEST(SmallNetworks, AreForClassificationAndHaveNoSegmentationTwin) {
  ModelOptions options;
  options.output_stride = 8;
  const auto message = usage_error([&] { make("inception_v2_cifar", options); });
  EXPECT_NE(message.find("takes no output stride, got 8; leave it out"), std::string::npos) << message;
  EXPECT_EQ(message.find("deeplabv3_"), std::string::npos) << message;
  EXPECT_NE(usage_error([] { make("deeplabv3_vgg16_cifar", {}); }).find("unknown model"), std::string::npos);
}

// In networks without normalization, values must neither vanish nor grow on their way through the layers.
TEST(SmallNetworks, WithoutNormalizationStartWithLogitsOfTheSizeOfOne) {
  for (const char* name : kPlain)
    for (const auto activation : {nn::Activation::kReLU, nn::Activation::kLeakyReLU}) {
      torch::manual_seed(1);
      ModelOptions options;
      options.classes = 10;
      options.activation = activation;
      const auto model = make(name, options);
      model->eval();
      const double deviation = model->forward(torch::randn({16, 3, 32, 32})).std().item<double>();
      EXPECT_GT(deviation, 0.02) << name;
      EXPECT_LT(deviation, 4) << name;
    }
}

TEST(SmallNetworks, DropOutInTrainingAloneAndByTheSeed) {
  for (const char* name : {"alexnet_cifar_narrow", "vgg16_cifar_narrow", "googlenet_cifar_narrow",
                           "inception_v3_cifar_narrow"}) {
    torch::manual_seed(1);
    const auto model = small(name);
    expect_dropout(*model, torch::randn({4, 3, 32, 32}), name);
  }
}

struct StepOf16Bits {
  at::Tensor logits;
  int64_t kept_bytes;
};

StepOf16Bits forward_in(const std::string& name, amp::Precision precision) {
  torch::manual_seed(1);
  const auto model = small(name);
  const auto images = torch::randn({8, 3, 32, 32});
  memory::Meter meter;
  const amp::PrecisionGuard guard(at::kCPU, precision);
  const auto logits = model->forward(images);
  meter.forward_done();
  return {logits.detach().to(at::kFloat), meter.kept_bytes()};
}

// The deepest, v3 with its normalizations over few values, has errors of 0.28 in bf16 and 0.046 in f16.
TEST(SmallNetworks, ComputeInSixteenBitsAndKeepNoCopyOfTheirWeights) {
  using amp::Precision;
  for (const auto* list : {&kPlain, &kNormalized})
    for (const char* name : *list) {
      const auto want = forward_in(name, Precision::kF32);
      for (const auto precision : {Precision::kBF16, Precision::kF16, Precision::kF16Pseudo}) {
        const auto got = forward_in(name, precision);
        const double error = relative_error(got.logits, want.logits);
        EXPECT_LT(error, precision == Precision::kBF16 ? testing::kBF16Logits : testing::kF16Logits)
            << name << " in " << amp::to_string(precision);
        EXPECT_GT(error, 1e-5) << name << " was not computed in " << amp::to_string(precision);
        // The places of maxima take a byte in either. A copy of the weights, 1 to 5 MB, would show.
        EXPECT_LT(static_cast<double>(got.kept_bytes), 0.6 * static_cast<double>(want.kept_bytes))
            << name << " in " << amp::to_string(precision);
      }
    }
}

}  // namespace
}  // namespace palimpsest::models
