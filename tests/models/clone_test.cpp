#include "palimpsest/models/fold.h"
#include "palimpsest/nn/linear.h"
#include "tests/models/support.h"

#include <cmath>

namespace palimpsest::models {
namespace {

std::shared_ptr<nn::Model> copy_of(const nn::Model& model) {
  return std::dynamic_pointer_cast<nn::Model>(model.clone());
}

/// Every floating tensor of the model becomes NaN: a clone that still reads one shows it.
void destroy(torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : nn::state_dict(model))
    if (tensor.is_floating_point()) tensor.fill_(std::nan(""));
}

class Clone : public ::testing::TestWithParam<std::string> {};

TEST_P(Clone, GivesTheSameBitsAndSharesNothing) {
  const at::NoGradGuard no_grad;
  const auto model = make(GetParam(), {.classes = 3});
  model->eval();
  const auto images = torch::randn({1, 3, small_side(GetParam()), small_side(GetParam())});
  const auto want = model->forward(images);
  const auto copy = copy_of(*model);
  EXPECT_FALSE(copy->is_training());
  const auto got = nn::state_dict(*copy), state = nn::state_dict(*model);
  ASSERT_EQ(got.size(), state.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first, state[i].first);
    EXPECT_NE(got[i].second.data_ptr(), state[i].second.data_ptr()) << got[i].first;
  }
  destroy(*model);
  EXPECT_TRUE(torch::equal(copy->forward(images), want));
}

/// Without vgg16, of alexnet's class: it has half a gigabyte of weights.
std::vector<std::string> cloned_names() {
  auto all = names();
  std::erase(all, "vgg16");
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Clone, ::testing::ValuesIn(cloned_names()),
                         [](const auto& info) { return info.param; });

struct Network {
  const char* name;
  nn::Strategy strategy;
  nn::Activation activation;
};

/// A network of every class; store_y with ReLU defers activations.
const Network kNetworks[] = {
    {"resnet18_narrow", nn::Strategy::kInplace2, nn::Activation::kLeakyReLU},
    {"resnet18_narrow", nn::Strategy::kStoreY, nn::Activation::kReLU},
    {"deeplabv3_resnet18_narrow", nn::Strategy::kStandard, nn::Activation::kReLU},
    {"densenet_bc16_k4", nn::Strategy::kInplace2, nn::Activation::kLeakyReLU},
    {"alexnet_cifar_narrow", nn::Strategy::kStandard, nn::Activation::kReLU},
    {"googlenet_cifar_narrow", nn::Strategy::kStandard, nn::Activation::kReLU},
    {"inception_v3_cifar_narrow", nn::Strategy::kCheckpoint, nn::Activation::kGELU},
    {"resnet29_preact_cifar", nn::Strategy::kInplace2, nn::Activation::kLeakyReLU},
    {"googlenet", nn::Strategy::kInplace2, nn::Activation::kLeakyReLU},
    {"efficientnet_b0", nn::Strategy::kInplaceBit, nn::Activation::kSiLU},
    {"mobilenet_v3_small", nn::Strategy::kStoreY, nn::Activation::kHardSwish},
};

std::shared_ptr<nn::Model> made(const Network& n) {
  torch::manual_seed(3);
  return make(n.name, {.classes = 3, .strategy = n.strategy, .activation = n.activation});
}

/// One training step's logits and gradients.
std::vector<at::Tensor> trained(nn::Model& model, at::ScalarType type) {
  torch::manual_seed(5);
  const auto logits = model.forward(torch::randn({2, 3, 32, 32}).to(type));
  model.zero_grad();
  logits.sin().sum().backward();
  std::vector<at::Tensor> all{logits.detach()};
  for (const auto& p : model.parameters()) all.push_back(p.grad().clone());
  for (const auto& b : model.buffers()) all.push_back(b.clone());
  return all;
}

TEST(Clone, OfACloneTrainsToTheSameBits) {
  for (const auto& n : kNetworks)
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const auto model = made(n);
      model->to(type);
      const auto copy = copy_of(*copy_of(*model));
      const auto want = trained(*model, type);
      destroy(*model);
      const auto got = trained(*copy, type);
      ASSERT_EQ(got.size(), want.size()) << n.name;
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_TRUE(torch::equal(got[i], want[i])) << n.name << ", result " << i;
    }
}

TEST(Clone, HasTheReplacedClassifierAndNoneWhereThereIsNone) {
  const auto images = torch::randn({2, 3, 32, 32});
  for (const auto& n : kNetworks) {
    const auto model = made(n);
    model->eval();
    if (!model->is_segmentation()) {
      model->replace_classifier(torch::nn::Linear(model->classifier_channels(), 7));
      EXPECT_EQ(copy_of(*model)->forward(images).sizes(), at::IntArrayRef({2, 7})) << n.name;
    }
    const auto headless = make(n.name, {.classes = 0, .strategy = n.strategy, .activation = n.activation});
    headless->eval();
    EXPECT_TRUE(torch::equal(copy_of(*headless)->forward(images), headless->forward(images))) << n.name;
  }
}

TEST(Clone, OfAFoldedModelIsFolded) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"resnet18_narrow", "densenet_bc16_k4", "deeplabv3_resnet18_narrow"}) {
    auto model = make(name, {.classes = 3});
    fill_by_formula(*model);
    model->eval();
    const auto folded = fold(std::move(model));
    const auto copy = copy_of(*folded);
    const auto images = images_by_formula(32);
    const auto want = folded->forward(images);
    destroy(*folded);
    EXPECT_TRUE(torch::equal(copy->forward(images), want)) << name;
    EXPECT_NE(usage_error([&] { fold(copy); }).find("folded already"), std::string::npos);
  }
}

}  // namespace
}  // namespace palimpsest::models
