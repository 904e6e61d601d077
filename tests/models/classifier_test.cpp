// Networks without a classifier, with one of the user's own, and without images.
#include "palimpsest/models/backbone.h"
#include "palimpsest/models/fold.h"
#include "tests/models/support.h"

namespace palimpsest::models {
namespace {

constexpr const char* kClassifying[] = {"resnet18_narrow",
                                        "densenet_bc16_k4",
                                        "alexnet_cifar_narrow",
                                        "vgg16_cifar_narrow",
                                        "googlenet_cifar_narrow",
                                        "inception_v2_cifar_narrow",
                                        "resnet29_preact_cifar",
                                        "efficientnet_b0",
                                        "mobilenet_v3_small",
                                        "alexnet",
                                        "googlenet"};

at::Tensor small_images(const std::string& name) {
  return torch::randn({2, 3, small_side(name), small_side(name)});
}

TEST(Classifier, WithoutOneForwardGivesTheFeatures) {
  for (const char* name : kClassifying) {
    const auto images = small_images(name);
    torch::manual_seed(1);
    const auto model = make(name, {.classes = 0});
    model->eval();
    const auto backbone = std::dynamic_pointer_cast<Backbone>(model);
    ASSERT_TRUE(backbone) << name;
    const auto features = model->forward(images);
    EXPECT_EQ(features.dim(), 4) << name;
    EXPECT_EQ(features.size(1), backbone->feature_channels()) << name;
    EXPECT_TRUE(torch::equal(backbone->features(images), features)) << name;
    for (const auto& p : model->named_parameters())
      EXPECT_FALSE(p.key().starts_with("fc") || p.key().starts_with("classifier")) << name << " " << p.key();
    // With the same weights, the features of the network that has a classifier.
    torch::manual_seed(1);
    const auto whole = std::dynamic_pointer_cast<Backbone>(make(name, {.classes = 3}));
    const at::NoGradGuard no_grad;
    const auto all = whole->named_parameters();
    for (auto& p : model->named_parameters()) p.value().copy_(all[p.key()]);
    whole->eval();
    EXPECT_TRUE(torch::equal(model->forward(images), whole->features(images))) << name;
  }
}

TEST(Classifier, WithoutOneASegmentationNetworkGivesItsContext) {
  const auto model = make("deeplabv3_resnet18_narrow", {.classes = 0});
  EXPECT_EQ(model->forward(torch::randn({2, 3, 64, 48})).sizes(),
            at::IntArrayRef({2, model->classifier_channels(), 4, 3}));
}

TEST(Classifier, OfOnesOwnIsUsedAndTrained) {
  for (const char* name : kClassifying)
    for (const int64_t classes : {0, 3}) {
      const auto model = make(name, {.classes = classes});
      model->replace_classifier(torch::nn::Sequential(torch::nn::Linear(model->classifier_channels(), 5),
                                                      torch::nn::ReLU(), torch::nn::Linear(5, 7)));
      const auto logits = model->forward(small_images(name));
      EXPECT_EQ(logits.sizes(), at::IntArrayRef({2, 7})) << name;
      logits.square().sum().backward();
      for (const auto& p : model->named_parameters()) EXPECT_TRUE(p.value().grad().defined()) << p.key();
      EXPECT_TRUE(nn::state_dict(*model).back().first.ends_with(".2.bias")) << name;
    }
  const auto segments = make("deeplabv3_resnet18_narrow", {.classes = 3});
  segments->replace_classifier(torch::nn::Conv2d(segments->classifier_channels(), 7, 1));
  EXPECT_EQ(segments->forward(torch::randn({2, 3, 64, 48})).sizes(), at::IntArrayRef({2, 7, 64, 48}));
}

TEST(Classifier, ReplaceModuleWorksOrFailsLoudly) {
  const auto model = make("resnet18_narrow", {.classes = 3});
  model->replace_module("fc", torch::nn::Linear(128, 7));
  EXPECT_EQ(model->forward(torch::randn({2, 3, 32, 32})).sizes(), at::IntArrayRef({2, 7}));
  EXPECT_NE(usage_error([&] {
              model->replace_module("conv1", torch::nn::Conv2d(1, 16, 7));
            }).find("only the classifier 'fc'"),
            std::string::npos);
  model->eval();
  const auto folded = fold(model);
  torch::nn::Module& base = *folded;
  base.replace_module("fc", std::make_shared<torch::nn::LinearImpl>(128, 5));
  EXPECT_NE(usage_error([&] { folded->forward(torch::randn({2, 3, 32, 32})); }).find("before fold()"),
            std::string::npos);
}

/// The networks behave like torchvision's: empty logits, zero gradients.
TEST(EmptyBatch, GivesEmptyLogitsInTrainingAndInEvalMode) {
  for (const char* name :
       {"resnet18_narrow", "densenet_bc16_k4", "alexnet_cifar_narrow", "vgg16_cifar_narrow",
        "googlenet_cifar_narrow", "inception_v2_cifar_narrow", "inception_v3_cifar_narrow",
        "resnet29_preact_cifar", "resnext50_preact", "deeplabv3_resnet18_narrow", "efficientnet_b0",
        "mobilenet_v3_small", "googlenet", "inception_v3", "resnet50_preact"})
    for (const bool training : {true, false})
      for (const auto strategy : {nn::Strategy::kStandard, nn::Strategy::kInplace2, nn::Strategy::kStoreY}) {
        if (!normalizes(name) && strategy != nn::Strategy::kStandard) continue;
        if (!nn::fits(strategy, default_activation(name))) continue;
        const auto model = make(name, {.classes = 5, .strategy = strategy});
        model->train(training);
        const auto logits = model->forward(torch::zeros({0, 3, small_side(name), small_side(name)}));
        EXPECT_EQ(logits.size(0), 0) << name;
        EXPECT_EQ(logits.size(1), 5) << name;
        logits.sum().backward();
        for (const auto& p : model->named_parameters())
          EXPECT_EQ(p.value().grad().abs().sum().item<double>(), 0) << name << " " << p.key();
      }
}

}  // namespace
}  // namespace palimpsest::models
