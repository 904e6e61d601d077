#include "palimpsest/models/fold.h"

#include "tests/models/support.h"

#include <algorithm>

namespace palimpsest::models {
namespace {

/// f64, with every weight by formula and every third scale of a normalization negative.
std::shared_ptr<nn::Model> filled(const std::string& name, nn::Strategy strategy) {
  ModelOptions options;
  options.classes = 5;
  options.strategy = strategy;
  options.activation = nn::Activation::kLeakyReLU;
  auto model = make(name, options);
  fill_by_formula(*model);
  const torch::NoGradGuard no_grad;
  for (auto& [key, tensor] : nn::state_dict(*model))
    if (tensor.dim() == 1 && key.ends_with("weight")) tensor.slice(0, 0, c10::nullopt, 3).neg_();
  model->eval();
  return model;
}

std::vector<std::string> keys(const torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& [key, tensor] : nn::state_dict(model)) names.push_back(key);
  return names;
}

struct Expected {
  const char* name;
  std::size_t folded, kept;
};

class FoldModel : public ::testing::TestWithParam<std::tuple<Expected, nn::Strategy>> {};

TEST_P(FoldModel, GivesTheSameLogitsWithoutTheNormalizations) {
  const auto& [expected, strategy] = GetParam();
  const torch::NoGradGuard no_grad;
  auto model = filled(expected.name, strategy);
  const auto images = images_by_formula(std::string(expected.name) == "inception_v3" ? 75 : 64);
  const auto want = model->forward(images);
  const auto before = keys(*model);

  FoldReport report;
  const auto folded = fold(std::move(model), &report);
  EXPECT_LE(relative_error(folded->forward(images), want), kReorderedNetworkF64);
  EXPECT_EQ(report.folded.size(), expected.folded);
  EXPECT_EQ(report.kept.size(), expected.kept);
  // Five entries go with each; every convolution that took one gains a bias.
  const auto after = keys(*folded);
  for (const auto& norm : report.folded)
    EXPECT_EQ(
        std::count_if(after.begin(), after.end(), [&](const auto& k) { return k.starts_with(norm + "."); }),
        0)
        << norm;
  const auto statistics = [](const std::vector<std::string>& list) {
    return std::count_if(list.begin(), list.end(), [](const auto& k) { return k.ends_with("running_var"); });
  };
  EXPECT_EQ(static_cast<std::size_t>(statistics(before)), expected.folded + expected.kept);
  EXPECT_EQ(static_cast<std::size_t>(statistics(after)), expected.kept);
}

// Pre-activation: two in the stem, three normalizations a block, of which the first follows a sum, and bn_out at
// the end.
INSTANTIATE_TEST_SUITE_P(
    Models, FoldModel,
    ::testing::Combine(
        ::testing::Values(Expected{"resnet18_narrow", 20, 0}, Expected{"resnet50", 53, 0},
                          Expected{"resnext50_32x4d", 53, 0}, Expected{"resnext50_preact", 2 + 32, 17},
                          // Four blocks of two convolutions, two of three.
                          Expected{"wide_resnet16", 4 + 2 * 2, 7}, Expected{"wide_resnet16_a2", 8, 7},
                          Expected{"deeplabv3_resnet18_narrow", 23, 0},
                          // Three blocks of two layers; two transitions, norm_final.
                          Expected{"densenet_bc16_k4", 6, 9},
                          // Three and five in the stem; chains and a stack in each block.
                          Expected{"inception_v2_cifar_narrow", 3 + 10 * 4, 0},
                          Expected{"inception_v3_cifar_narrow", 5 + 3 * 4 + 3 + 4 * 7 + 5 + 2 * 4, 0},
                          Expected{"resnet29_preact_cifar", 18, 10},
                          // Three in the stem, six per block.
                          Expected{"googlenet", 3 + 9 * 6, 0}, Expected{"inception_v3", 94, 0},
                          // The stem's, and two of each block; a block's bn1 but the first's, and bn_out.
                          Expected{"resnet50_preact", 1 + 2 * 16, 15 + 1},
                          // First and last; three per block, two in the one block that does not expand.
                          Expected{"efficientnet_b0", 2 + 3 * 16 - 1, 0},
                          Expected{"mobilenet_v3_small", 2 + 3 * 11 - 1, 0}),
        ::testing::Values(nn::Strategy::kStandard, nn::Strategy::kInplace2)),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + "_" + nn::to_string(std::get<1>(info.param));
    });

TEST(FoldModel, ReportsByName) {
  FoldReport report;
  fold(filled("resnext50_preact", nn::Strategy::kInplace2), &report);
  EXPECT_EQ(report.folded.front(), "mod1.bn1");
  EXPECT_EQ(report.folded.at(2), "mod2.block1.convs.bn2");
  EXPECT_EQ(report.kept.front(), "mod2.block1.bn1");
  EXPECT_EQ(report.kept.back(), "bn_out");
}

TEST(FoldModel, ANetworkThatNormalizesNothingIsRefused) {
  const auto model = make("alexnet_cifar_narrow", {});
  model->eval();
  EXPECT_NE(usage_error([&] { fold(model); }).find("nothing to fold"), std::string::npos);
}

TEST(FoldModel, IsForInferenceOnly) {
  EXPECT_NE(usage_error([] { fold(make("resnet18_narrow", {})); }).find("call eval() first"),
            std::string::npos);
  const auto folded = fold(filled("resnet18_narrow", nn::Strategy::kInplace2));
  EXPECT_NE(usage_error([&] { fold(folded); }).find("folded already"), std::string::npos);
  folded->train();
  EXPECT_NE(usage_error([&] { folded->forward(images_by_formula()); }).find("for inference"),
            std::string::npos);
  folded->eval();
  EXPECT_NO_THROW(folded->forward(images_by_formula()));
}

}  // namespace
}  // namespace palimpsest::models
