#include "palimpsest/models/common/stage_planner.h"
#include "palimpsest/models/resnet.h"
#include "palimpsest/models/resnext_preact.h"
#include "palimpsest/models/wide_resnet.h"
#include "tests/models/support.h"

#include <functional>

namespace palimpsest::models {
namespace {

using Maker = std::function<std::shared_ptr<Backbone>(const BackboneOptions&)>;

struct AtrousCase {
  const char* name;
  Maker make;
};

std::ostream& operator<<(std::ostream& stream, const AtrousCase& c) {
  return stream << c.name;
}

class Atrous : public ::testing::TestWithParam<AtrousCase> {};

// Holes instead of strides: the dilated network computes more positions, and the old ones have the old
// values.
TEST_P(Atrous, EveryFeatureOfTheStridedNetworkIsAFeatureOfTheDilatedOne) {
  torch::NoGradGuard no_grad;
  const auto images = images_by_formula(96);
  at::Tensor strided;
  for (const int64_t output_stride : {32, 16, 8}) {
    BackboneOptions options;
    options.classes = 0;
    options.output_stride = output_stride;
    const auto body = GetParam().make(options);
    fill_by_formula(*body);
    body->eval();
    const auto features = body->forward(images);
    EXPECT_EQ(features.sizes(),
              at::IntArrayRef({2, body->feature_channels(), 96 / output_stride, 96 / output_stride}));
    if (output_stride == 32) strided = features;
    const int64_t step = 32 / output_stride;
    const auto common = features.slice(2, 0, std::nullopt, step).slice(3, 0, std::nullopt, step);
    EXPECT_LE(relative_error(common, strided), kReorderedNetworkF64) << "output stride " << output_stride;
  }
}

const ResNetShape kBasic{"resnet18", false, {2, 2, 2, 2}, 1, 64, 16};
const ResNetShape kBottleneck{"resnet26", true, {2, 2, 2, 2}, 1, 64, 16};

INSTANTIATE_TEST_SUITE_P(
    Blocks, Atrous,
    ::testing::Values(
        AtrousCase{"BasicBlock",
                   [](const BackboneOptions& o) { return std::make_shared<ResNet>(kBasic, o); }},
        AtrousCase{"Bottleneck",
                   [](const BackboneOptions& o) { return std::make_shared<ResNet>(kBottleneck, o); }},
        AtrousCase{"PreactBlock",
                   [](const BackboneOptions& o) {
                     return std::make_shared<WideResNet>("small", std::array<int64_t, 6>{1, 1, 2, 2, 1, 1},
                                                         o);
                   }},
        AtrousCase{"PreactBottleneck",
                   [](const BackboneOptions& o) {
                     return std::make_shared<PreactResNeXt>("small", std::array<int64_t, 4>{2, 2, 2, 2}, o);
                   }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(StagePlanner, OtherOutputStridesAreRefused) {
  EXPECT_NE(usage_error([] { StagePlanner(12); }).find("8, 16 or 32, got 12"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::models
