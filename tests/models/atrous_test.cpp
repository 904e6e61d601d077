#include "palimpsest/models/common/stage_planner.h"
#include "palimpsest/models/resnet.h"
#include "palimpsest/models/resnext_preact.h"
#include "palimpsest/models/wide_resnet.h"
#include "tests/models/support.h"

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

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

INSTANTIATE_TEST_SUITE_P(Blocks, Atrous,
                         ::testing::Values(AtrousCase{"BasicBlock",
                                                      [](const BackboneOptions& o) {
                                                        return std::make_shared<ResNet>(kBasic, o);
                                                      }},
                                           AtrousCase{"Bottleneck",
                                                      [](const BackboneOptions& o) {
                                                        return std::make_shared<ResNet>(kBottleneck, o);
                                                      }},
                                           AtrousCase{"PreactBottleneck",
                                                      [](const BackboneOptions& o) {
                                                        return std::make_shared<PreactResNeXt>(
                                                            "small", std::array<int64_t, 4>{2, 2, 2, 2}, o);
                                                      }}),
                         [](const auto& info) { return std::string(info.param.name); });

/// Returns stride, or the dilation of the 3x3 convolutions, of the blocks of mod2, mod3, ...; one number per block.
std::vector<std::vector<int64_t>> of_blocks(const Backbone& body, bool dilation) {
  std::vector<std::vector<int64_t>> modules;
  for (const auto& module : body.named_children()) {
    if (!module.key().starts_with("mod") || module.key() == "mod1") continue;
    modules.emplace_back();
    for (const auto& block : module.value()->children()) {
      std::vector<int64_t> strides, dilations;
      for (const auto& layer : block->named_modules("", false))
        if (const auto* c = layer.value()->as<torch::nn::Conv2d>(); c && layer.key() != "proj_conv") {
          strides.push_back(c->options.stride()->at(0));
          if (c->weight.size(2) == 3) dilations.push_back(c->options.dilation()->at(0));
        }
      EXPECT_EQ(std::set<int64_t>(dilations.begin(), dilations.end()).size(), 1u);
      EXPECT_TRUE(std::all_of(strides.begin() + 1, strides.end(), [](int64_t s) { return s == 1; }))
          << "only the first convolution of a block has a stride";
      modules.back().push_back(dilation ? dilations[0] : strides[0]);
    }
  }
  return modules;
}

// The In-Place ABN paper's release: no stride and one dilation in a whole module, its first block included.
TEST(DilationOfThePapersNetworks, IsThatOfWholeModules) {
  using Numbers = std::vector<std::vector<int64_t>>;
  const auto resnext = [](int64_t output_stride) {
    return PreactResNeXt("small", {1, 2, 2, 2}, {.classes = 0, .output_stride = output_stride});
  };
  const auto wide = [](int64_t output_stride) {
    return WideResNet({"small", {1, 1, 2, 2, 1, 1}, true}, {.classes = 0, .output_stride = output_stride});
  };
  EXPECT_EQ(of_blocks(resnext(32), false), (Numbers{{1}, {2, 1}, {2, 1}, {2, 1}}));
  EXPECT_EQ(of_blocks(resnext(16), false), (Numbers{{1}, {2, 1}, {2, 1}, {1, 1}}));
  EXPECT_EQ(of_blocks(resnext(16), true), (Numbers{{1}, {1, 1}, {1, 1}, {2, 2}}));
  EXPECT_EQ(of_blocks(resnext(8), false), (Numbers{{1}, {2, 1}, {1, 1}, {1, 1}}));
  EXPECT_EQ(of_blocks(resnext(8), true), (Numbers{{1}, {1, 1}, {2, 2}, {4, 4}}));
  EXPECT_EQ(of_blocks(wide(32), false), (Numbers{{1}, {1}, {2, 1}, {2, 1}, {2}, {1}}));
  EXPECT_EQ(of_blocks(wide(16), true), (Numbers{{1}, {1}, {1, 1}, {1, 1}, {2}, {2}}));
  EXPECT_EQ(of_blocks(wide(8), false), (Numbers{{1}, {1}, {2, 1}, {1, 1}, {1}, {1}}));
  EXPECT_EQ(of_blocks(wide(8), true), (Numbers{{1}, {1}, {1, 1}, {2, 2}, {4}, {4}}));
}

TEST(WideResNetForms, ThePooledOneHasNoStridesAndTakesNoDilation) {
  const WideResNetShape pooled{"wide_resnet16", {1, 1, 1, 1, 1, 1}};
  const WideResNet body(pooled, {.classes = 0});
  EXPECT_EQ(of_blocks(body, false), std::vector<std::vector<int64_t>>(6, {1}));
  const std::string message = usage_error([&] { WideResNet(pooled, {.output_stride = 16}); });
  EXPECT_NE(message.find("wide_resnet16 halves the image by poolings"), std::string::npos) << message;
  EXPECT_NE(message.find("32, got 16; take the form A2"), std::string::npos) << message;
}

TEST(StagePlanner, OtherOutputStridesAreRefused) {
  EXPECT_NE(usage_error([] { StagePlanner(12); }).find("8, 16 or 32, got 12"), std::string::npos);
}

}  // namespace
}  // namespace palimpsest::models
