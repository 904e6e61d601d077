// The networks of the mixed precision paper's ImageNet table: AlexNet, VGG-16, GoogLeNet, Inception v2 and v3, and
// the pre-activation ResNet-50.
#include "palimpsest/memory/meter.h"
#include "palimpsest/models/torchvision_inception.h"
#include "tests/models/support.h"

namespace palimpsest::models {
namespace {

/// The parameters of a network without a classifier, and with one of 1000 classes over its features.
int64_t parameters_of_body(const std::string& name) {
  int64_t count = 0;
  for (const auto& p : make(name, {.classes = 0})->parameters()) count += p.numel();
  return count;
}
double millions(const std::string& name, int64_t features) {
  return static_cast<double>(parameters_of_body(name) + 1000 * (features + 1)) / 1e6;
}

int64_t preact_parameters(const std::vector<int64_t>& blocks) {
  int64_t total = 3 * 64 * 49 + 2 * 64, in = 64;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (int64_t b = 0; b < blocks[i]; ++b) {
      const int64_t inner = int64_t{64} << i, out = 4 * inner;
      const bool behind_the_stem = i == 0 && b == 0;
      total += in * inner + 9 * inner * inner + inner * out + 4 * inner + (behind_the_stem ? 0 : 2 * in) +
               (b == 0 ? in * out : 0);
      in = out;
    }
  return total + 2 * in;
}

// alexnet, vgg16, googlenet and inception_v3 are counted in names_test.cpp.
TEST(ImagenetNetworks, HaveTheParametersThatWerePublished) {
  EXPECT_EQ(parameters_of_body("resnet50_preact"), preact_parameters({3, 4, 6, 3}));
  EXPECT_EQ(parameters_of_body("resnet101_preact"), preact_parameters({3, 4, 23, 3}));
  EXPECT_NEAR(millions("resnet50_preact", 2048), 25.5, 0.05);
  EXPECT_NEAR(millions("inception_v2", 1024), 11.25, 0.05);
}

TEST(ImagenetNetworks, HaveTheGridsOfThePapers) {
  struct Grid {
    const char* name;
    int64_t image, grid;
  };
  for (const auto& [name, image, grid] : {Grid{"alexnet", 224, 6},
                                          {"googlenet", 224, 7},
                                          {"inception_v2", 224, 7},
                                          {"inception_v3", 299, 8},
                                          {"resnet50_preact", 224, 7}}) {
    const at::NoGradGuard no_grad;
    const auto model = make(name, {.classes = 0});
    model->eval();
    const auto backbone = std::dynamic_pointer_cast<Backbone>(model);
    EXPECT_EQ(model->forward(torch::randn({1, 3, image, image})).sizes(),
              at::IntArrayRef({1, backbone->feature_channels(), grid, grid}))
        << name;
  }
}

TEST(ImagenetNetworks, TakeImagesOfAnySizeThatLeavesAPixel) {
  struct Least {
    const char* name;
    int64_t side;
  };
  for (const auto& [name, side] : {Least{"alexnet", 63},
                                   {"vgg16", 32},
                                   {"googlenet", 15},
                                   {"inception_v2", 1},
                                   {"inception_v3", 75},
                                   {"resnet50_preact", 1}}) {
    const at::NoGradGuard no_grad;
    const auto model = make(name, {.classes = 0});
    model->eval();
    for (const int64_t width : {side, side + 13}) {
      const auto features = model->forward(torch::randn({2, 3, side, width}));
      EXPECT_EQ(features.size(0), 2) << name;
      EXPECT_GT(features.numel(), 0) << name;
    }
    if (side == 1) continue;
    const auto message = usage_error([&] { model->forward(torch::randn({2, 3, side - 1, side})); });
    EXPECT_NE(message.find("at least " + std::to_string(side) + " pixels across"), std::string::npos)
        << name << ": " << message;
    EXPECT_NE(message.find(std::to_string(side - 1) + " x " + std::to_string(side)), std::string::npos)
        << message;
  }
}

TEST(ImagenetNetworks, NormalizeUnlessThePaperHasNoNormalization) {
  for (const char* name : {"alexnet", "vgg16"}) {
    EXPECT_FALSE(normalizes(name)) << name;
    EXPECT_NE(usage_error([&] {
                make(name, {.strategy = nn::Strategy::kStoreY});
              }).find("has no normalizations and takes only strategy 'standard'"),
              std::string::npos);
  }
  for (const char* name : {"googlenet", "inception_v2", "inception_v3", "resnet50_preact"})
    EXPECT_TRUE(normalizes(name)) << name;
}

TEST(ImagenetNetworks, DropOutInTrainingAloneAndByTheSeed) {
  for (const char* name : {"alexnet", "googlenet", "inception_v3"}) {
    EXPECT_TRUE(drops_out(name));
    torch::manual_seed(1);
    const auto model = make(name, {.classes = 10});
    expect_dropout(*model, torch::randn({4, 3, small_side(name), small_side(name)}), name);
  }
  for (const char* name : {"inception_v2", "resnet50_preact"}) EXPECT_FALSE(drops_out(name)) << name;
}

// VGG's hidden layers are half a gigabyte; their code is AlexNet's, which tests/cli/test_weights.py compares.
TEST(ImagenetNetworks, Vgg16HasTheConvolutionsAndPoolingsOfConfigurationD) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(1);
  const auto model = make("vgg16", {.classes = 0});
  const auto w = model->named_parameters();
  auto images = torch::randn({1, 3, 224, 224});
  const auto got = model->forward(images);
  int place = 0;
  at::Tensor x = images;
  for (const int convolutions : {2, 2, 3, 3, 3}) {
    for (int i = 0; i < convolutions; ++i, place += 2) {
      const std::string name = "features." + std::to_string(place);
      x = torch::leaky_relu(torch::conv2d(x, w[name + ".weight"], w[name + ".bias"], 1, 1), 0.01);
    }
    x = torch::max_pool2d(x, 2);
    ++place;
  }
  EXPECT_EQ(got.sizes(), at::IntArrayRef({1, 512, 7, 7}));
  EXPECT_LE(relative_error(got, x), testing::tolerance(DType::f32).relative_l2);
}

// A network without normalization must start with logits of the size of one, whatever its depth.
TEST(ImagenetNetworks, WithoutNormalizationStartWithLogitsOfTheSizeOfOne) {
  torch::manual_seed(1);
  const at::NoGradGuard no_grad;
  const auto model = make("alexnet", {.classes = 10, .activation = nn::Activation::kReLU});
  model->eval();
  const double deviation = model->forward(torch::randn({8, 3, 63, 63})).std().item<double>();
  EXPECT_GT(deviation, 0.02);
  EXPECT_LT(deviation, 4);
}

int64_t kept_bytes(const char* name, nn::Strategy strategy) {
  torch::manual_seed(1);
  const auto model = make(name, {.classes = 10, .strategy = strategy});
  const auto images = torch::randn({2, 3, 128, 128});
  memory::Meter meter;
  const auto logits = model->forward(images);
  meter.forward_done();
  return meter.kept_bytes();
}

// In place a block of W inner and E outer channels keeps W + E. Libtorch's layers keep 2W + 3E where each output
// is normalized by itself, in v2 2W + 2E. Average pooling keeps its input and output under either.
TEST(ImagenetNetworks, KeepInPlaceTheShareOfLibtorchsBytesThatTheirBlocksHave) {
  const auto share = [](const char* name) {
    return static_cast<double>(kept_bytes(name, nn::Strategy::kInplace2)) /
           static_cast<double>(kept_bytes(name, nn::Strategy::kStandard));
  };
  EXPECT_LT(share("googlenet"), 0.43);
  EXPECT_LT(share("inception_v2"), 0.55);
  EXPECT_LT(share("inception_v3"), 0.51);
  EXPECT_LT(share("resnet50_preact"), 0.50);
}

}  // namespace
}  // namespace palimpsest::models
