#include "tests/models/support.h"

#include <array>
#include <cstdint>
#include <sstream>

namespace palimpsest::models {
namespace {

// One line an entry, "name shape", in state-dict order.
std::vector<std::string> entries(const torch::nn::Module& model) {
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : nn::state_dict(model)) {
    std::ostringstream line;
    line << name << ' ';
    for (int64_t d = 0; d < tensor.dim(); ++d) line << (d ? "x" : "") << tensor.size(d);
    lines.push_back(line.str());
  }
  return lines;
}

// 64-bit FNV-1a of the lines, each ended by a newline.
uint64_t digest(const std::vector<std::string>& lines) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const auto& line : lines) {
    for (const char c : line + "\n") hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

int64_t parameter_count(const torch::nn::Module& model) {
  int64_t count = 0;
  for (const auto& parameter : model.parameters()) count += parameter.numel();
  return count;
}

struct Published {
  const char* name;
  int64_t parameters;
  uint64_t digest;  // of the entries of torchvision 0.26's model of this name
};

class Torchvision : public ::testing::TestWithParam<Published> {};

TEST_P(Torchvision, ParametersNamesShapesAndOrderAreThePublishedOnes) {
  const auto model = make(GetParam().name, {});
  EXPECT_EQ(parameter_count(*model), GetParam().parameters);
  const auto got = entries(*model);
  EXPECT_EQ(digest(got), GetParam().digest) << ::testing::PrintToString(got);
}

INSTANTIATE_TEST_SUITE_P(Models, Torchvision,
                         ::testing::Values(Published{"resnet18", 11689512, 0xf2b8cb04a7ed2b74},
                                           Published{"resnet34", 21797672, 0xff6b8bde2b3f8e44},
                                           Published{"resnet50", 25557032, 0xbcf79d988e045b7e},
                                           Published{"resnet101", 44549160, 0xf7513e3ca57e9509},
                                           Published{"resnet152", 60192808, 0xb76059ee22760130},
                                           Published{"resnext50_32x4d", 25028904, 0x9d01f1e851323d7f},
                                           Published{"resnext101_32x8d", 88791336, 0x6b389f4caf2fa86a},
                                           Published{"resnext101_64x4d", 83455272, 0x7c25cee4f50e5397},
                                           Published{"efficientnet_b0", 5288548, 0x86ed7a27b3f4c67f},
                                           Published{"mobilenet_v3_large", 5483032, 0xa2117d91da5616ad},
                                           Published{"mobilenet_v3_small", 2542856, 0x3ca215d69bc3e785},
                                           Published{"alexnet", 61100840, 0xe51f670ed71c74f0},
                                           Published{"vgg16", 138357544, 0xc3c36606220a7498},
                                           // Without auxiliary classifiers.
                                           Published{"googlenet", 6624904, 0x5a158e7ea067a7d9},
                                           Published{"inception_v3", 23834568, 0x488e97753c76be94},
                                           Published{"densenet121", 7978856, 0xe935261397013d52},
                                           Published{"densenet161", 28681000, 0x32437cccc8a2cf19},
                                           Published{"densenet169", 14149480, 0x5fbe16b7d4f826a4},
                                           Published{"densenet201", 20013928, 0x50873fd8fa3422c6}),
                         [](const auto& info) { return std::string(info.param.name); });

// The first stage of ResNet-18 and the first block of ResNet-50 in plain words, which a digest cannot show.
TEST(Names, AResNetReadsLikeTorchvisions) {
  const auto basic = entries(*make("resnet18", {}));
  EXPECT_EQ(basic[0], "conv1.weight 64x3x7x7");
  EXPECT_EQ(basic[5], "bn1.num_batches_tracked ");
  EXPECT_EQ(basic[6], "layer1.0.conv1.weight 64x64x3x3");
  EXPECT_EQ(basic.back(), "fc.bias 1000");
  const auto deep = entries(*make("resnet50", {}));
  EXPECT_NE(std::find(deep.begin(), deep.end(), "layer1.0.downsample.0.weight 256x64x1x1"), deep.end());
  EXPECT_NE(std::find(deep.begin(), deep.end(), "layer1.0.downsample.1.running_var 256"), deep.end());
}

// A quarter of the channels throughout, the head's among them.
TEST(Names, TheNarrowNetworkIsResNet18WithAQuarterOfItsChannels) {
  const auto narrow = entries(*make("deeplabv3_resnet18_narrow", {})),
             wide = entries(*make("deeplabv3_resnet18", {}));
  ASSERT_EQ(narrow.size(), wide.size());
  EXPECT_EQ(narrow[0], "body.conv1.weight 16x3x7x7");
  EXPECT_NE(std::find(narrow.begin(), narrow.end(), "head.red_conv.weight 64x256x1x1"), narrow.end());
  EXPECT_NE(std::find(wide.begin(), wide.end(), "head.red_conv.weight 256x1024x1x1"), wide.end());
  EXPECT_EQ(entries(*make("resnet18_narrow", {})).back(), "fc.bias 1000");
  for (std::size_t i = 0; i < narrow.size(); ++i)
    EXPECT_EQ(narrow[i].substr(0, narrow[i].find(' ')), wide[i].substr(0, wide[i].find(' ')));
}

using Blocks = std::array<int64_t, 4>;

// Weights by formula: a block of inner width w (conv1, conv2), 64 groups and c channels out of `in`:
//   in*w + w*(w/64)*9 + w*c, its three normalizations 2*(in + w + w), a projection in*c where the shape
//   changes.
int64_t preact_parameters(const Blocks& blocks) {
  int64_t total = 64 * 9 * (3 + 64 + 64) + 2 * 2 * 64, in = 64;  // the stem's convolutions and normalizations
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t w = 128 << i, c = 256 << i;
    for (int64_t b = 0; b < blocks[i]; ++b) {
      total += in * w + w * (w / 64) * 9 + w * c + 2 * (in + 2 * w) + (b == 0 ? in * c : 0);
      in = c;
    }
  }
  return total + 2 * in + in * 1000 + 1000;
}

// The names of the paper's release, in the order in which its modules are declared.
std::vector<std::string> preact_names(const Blocks& blocks) {
  std::vector<std::string> names;
  const auto norm = [&](const std::string& prefix) {
    for (const char* name : {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}) {
      names.push_back(prefix + "." + name);
    }
  };
  names.push_back("mod1.conv1.weight");
  norm("mod1.bn1");
  names.push_back("mod1.conv2.weight");
  norm("mod1.bn2");
  names.push_back("mod1.conv3.weight");
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t b = 1; b <= blocks[i]; ++b) {
      const std::string block = "mod" + std::to_string(i + 2) + ".block" + std::to_string(b);
      norm(block + ".bn1");
      names.push_back(block + ".convs.conv1.weight");
      norm(block + ".convs.bn2");
      names.push_back(block + ".convs.conv2.weight");
      norm(block + ".convs.bn3");
      names.push_back(block + ".convs.conv3.weight");
      if (b == 1) names.push_back(block + ".proj_conv.weight");
    }
  }
  norm("bn_out");
  names.insert(names.end(), {"fc.weight", "fc.bias"});
  return names;
}

// Weights by formula: a layer with c channels before it and growth k c*4k + 4k*9*k, its normalizations
// 2*(c + 4k); a transition c*c/2, its normalization 2c.
int64_t dense_parameters(const std::vector<int64_t>& blocks, int64_t k) {
  int64_t c = 2 * k, total = 3 * 49 * c + 2 * c;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (int64_t l = 0; l < blocks[i]; ++l, c += k) total += 4 * c * k + 36 * k * k + 2 * (c + 4 * k);
    if (i + 1 < blocks.size()) total += c * (c / 2) + 2 * c, c /= 2;
  }
  return total + 2 * c + 1000 * c + 1000;
}

// "Memory-Efficient Implementation of DenseNets": 264 layers with k = 32 have 33 M parameters, 232 with k =
// 48 55 M, 264 with k = 48 73 M.
TEST(Names, TheDeeperDenseNetsHaveTheSizesOfThePaper) {
  const auto millions = [](int64_t third, int64_t growth) {
    return static_cast<double>(dense_parameters({6, 12, third, 48}, growth)) / 1e6;
  };
  EXPECT_NEAR(millions(64, 32), 33, 1);
  EXPECT_NEAR(millions(48, 48), 55, 1);
  EXPECT_NEAR(millions(64, 48), 73, 1);
  EXPECT_EQ(parameter_count(*make("densenet264", {})), dense_parameters({6, 12, 64, 48}, 32));
  EXPECT_EQ(dense_parameters({6, 12, 24, 16}, 32), 7978856) << "torchvision's DenseNet-121";
}

TEST(Names, TheDeepStemIsThreeConvolutionsAndTheNormalizationsBetweenThem) {
  const auto deep = entries(*make("densenet264_deep_stem")), plain = entries(*make("densenet264"));
  EXPECT_EQ(parameter_count(*make("densenet264_deep_stem")), 33403880) << "the release's";
  const std::string stem[] = {"conv0.weight 64x3x3x3", "norm0.weight 64", "conv1.weight 64x64x3x3",
                              "norm1.weight 64", "conv2.weight 64x64x3x3"};
  const std::size_t places[] = {0, 1, 6, 7, 12};
  for (std::size_t i = 0; i < std::size(places); ++i) EXPECT_EQ(deep[places[i]], "features." + stem[i]);
  ASSERT_EQ(deep.size() - 13, plain.size() - 6);
  for (std::size_t i = 13; i < deep.size(); ++i) EXPECT_EQ(deep[i], plain[i - 7]);
  EXPECT_EQ(deep[13], "features.denseblock1.denselayer1.norm1.weight 64");
}

class Preact : public ::testing::TestWithParam<std::pair<const char*, Blocks>> {};

TEST_P(Preact, ParametersAndNamesFollowThePapersRelease) {
  const auto& [name, blocks] = GetParam();
  const auto model = make(name, {});
  EXPECT_EQ(parameter_count(*model), preact_parameters(blocks));
  std::vector<std::string> got;
  for (const auto& [key, tensor] : nn::state_dict(*model)) got.push_back(key);
  EXPECT_EQ(got, preact_names(blocks));
}

INSTANTIATE_TEST_SUITE_P(Models, Preact,
                         ::testing::Values(std::pair{"resnext50_preact", Blocks{3, 4, 6, 3}},
                                           std::pair{"resnext101_preact", Blocks{3, 4, 23, 3}},
                                           std::pair{"resnext152_preact", Blocks{3, 8, 36, 3}}),
                         [](const auto& info) { return std::string(info.param.first); });

TEST(Names, AWideResNetHasTheNamesAndParametersOfThePapersRelease) {
  const auto model = make("wide_resnet38", {});
  const int64_t blocks[] = {3, 3, 6, 3, 1, 1};
  const std::vector<std::vector<int64_t>> widths = {{128, 128},  {256, 256},        {512, 512},
                                                    {512, 1024}, {512, 1024, 2048}, {1024, 2048, 4096}};
  int64_t total = 64 * 3 * 9, in = 64;
  std::vector<std::string> convolutions{"mod1.conv1.weight"};
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const bool bottleneck = widths[i].size() == 3;
    const int64_t out = widths[i].back();
    for (int64_t b = 1; b <= blocks[i]; ++b) {
      const std::string block = "mod" + std::to_string(i + 2) + ".block" + std::to_string(b);
      int64_t c = in;
      for (std::size_t k = 0; k < widths[i].size(); ++k) {
        const int64_t taps = bottleneck && k != 1 ? 1 : 9;
        total += c * widths[i][k] * taps + 2 * c;  // the convolution, the normalization before it
        c = widths[i][k];
        convolutions.push_back(block + ".convs.conv" + std::to_string(k + 1) + ".weight");
      }
      if (in != out) {
        total += in * out;
        convolutions.push_back(block + ".proj_conv.weight");
      }
      in = out;
    }
  }
  EXPECT_EQ(parameter_count(*model), total + 2 * in + in * 1000 + 1000);
  std::vector<std::string> got;
  for (const auto& [key, tensor] : nn::state_dict(*model))
    if (tensor.dim() == 4) got.push_back(key);
  EXPECT_EQ(got, convolutions);
  EXPECT_EQ(entries(*make("wide_resnet38_a2", {})), entries(*model)) << "the form A2";
}

TEST(Names, DoNotDependOnTheStrategy) {
  for (const char* name :
       {"resnet18", "resnext50_32x4d", "resnext50_preact", "wide_resnet16", "wide_resnet16_a2",
        "deeplabv3_resnet18", "densenet_bc16_k4", "inception_v3_cifar_narrow", "resnet29_preact_cifar",
        "googlenet", "resnet50_preact"}) {
    ModelOptions standard, in_place;
    standard.strategy = nn::Strategy::kStandard;
    in_place.strategy = nn::Strategy::kInplace2;
    EXPECT_EQ(entries(*make(name, standard)), entries(*make(name, in_place))) << name;
  }
}

TEST(Names, ASegmentationNetworkHasTheBackbonesNamesUnderBody) {
  const auto backbone = entries(*make("resnet18", {}));
  const auto whole = entries(*make("deeplabv3_resnet18", {}));
  const std::size_t body = backbone.size() - 2;  // without fc
  ASSERT_GT(whole.size(), body);
  for (std::size_t i = 0; i < body; ++i) EXPECT_EQ(whole[i], "body." + backbone[i]);
  EXPECT_EQ(whole[body], "head.map_convs.0.weight 256x512x1x1");
  EXPECT_EQ(whole.back(), "cls.bias 1000");
}

}  // namespace
}  // namespace palimpsest::models
