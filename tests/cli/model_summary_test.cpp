#include "palimpsest/cli/model_summary.h"

#include "palimpsest/models/registry.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>

namespace palimpsest::cli {
namespace {

struct Published {
  const char* name;
  double giga;  // multiply-adds of one image of 224 x 224
};

std::ostream& operator<<(std::ostream& stream, const Published& published) {
  return stream << published.name;
}

class MultiplyAdds : public ::testing::TestWithParam<Published> {};

// torchvision's tables of models (GIPS) give these numbers, and the papers of EfficientNet (0.39) and MobileNetV3
// (0.219, small 0.056) theirs. The last digit is rounded.
TEST_P(MultiplyAdds, AreThePublishedOnes) {
  const auto model = models::make(GetParam().name, {.strategy = nn::Strategy::kStandard});
  model->eval();
  const torch::NoGradGuard no_grad;
  int64_t sum = 0;
  for (const auto& layer : summarize(*model, [&] { model->forward(torch::zeros({1, 3, 224, 224})); }))
    sum += layer.multiply_adds;
  EXPECT_NEAR(static_cast<double>(sum) / 1e9, GetParam().giga, 0.0055);
}

INSTANTIATE_TEST_SUITE_P(Models, MultiplyAdds,
                         ::testing::Values(Published{"resnet18", 1.81}, Published{"resnet50", 4.09},
                                           Published{"resnext50_32x4d", 4.23},
                                           Published{"resnext101_32x8d", 16.41},
                                           Published{"densenet121", 2.83}, Published{"efficientnet_b0", 0.39},
                                           Published{"mobilenet_v3_large", 0.219},
                                           Published{"mobilenet_v3_small", 0.056}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MultiplyAddsOfLayers, ArePerImageAndOnlyOfProducts) {
  const auto model = models::make("resnet18_narrow", {.classes = 10, .strategy = nn::Strategy::kStandard});
  model->eval();
  const torch::NoGradGuard no_grad;
  for (const int64_t images : {1, 3}) {
    for (const auto& layer : summarize(*model, [&] { model->forward(torch::zeros({images, 3, 64, 64})); })) {
      // conv1: 7 x 7 x 3 products for 16 channels of 32 x 32 pixels. fc: 128 for 10 outputs.
      if (layer.name == "conv1") {
        EXPECT_EQ(layer.multiply_adds, 7 * 7 * 3 * 16 * 32 * 32);
      }
      if (layer.name == "fc") {
        EXPECT_EQ(layer.multiply_adds, 128 * 10);
      }
      if (layer.name == "bn1") {
        EXPECT_EQ(layer.multiply_adds, 0);
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest::cli
