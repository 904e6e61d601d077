#include "palimpsest/nn/model.h"

#include "palimpsest/nn/linear.h"
#include "tests/nn/support.h"

namespace palimpsest::nn {
namespace {

/// The mean colour of each image, then the classifier, if any.
struct MeanColour : Cloneable<MeanColour, Model> {
  explicit MeanColour(int64_t classes) {
    declare_classifier("fc", 3);
    if (classes > 0) replace_classifier(Linear(3, classes));
  }
  at::Tensor forward(const at::Tensor& images) override {
    const auto mean = images.mean({2, 3});
    return has_classifier() ? classify(mean) : mean;
  }
  bool is_segmentation() const override { return false; }

 private:
  void rebind(Clones& clones) override { rebind_classifier(clones); }
};

at::Tensor images() {
  return torch::ones({2, 3, 4, 4});
}

TEST(Model, RunsTheClassifierThatTookThePlaceOfItsOwn) {
  const auto model = std::make_shared<MeanColour>(5);
  EXPECT_EQ(model->classifier_channels(), 3);
  EXPECT_EQ(model->forward(images()).sizes(), at::IntArrayRef({2, 5}));
  model->replace_classifier(torch::nn::Linear(3, 7));
  EXPECT_EQ(model->forward(images()).sizes(), at::IntArrayRef({2, 7}));
  EXPECT_EQ(keys(*model), (std::vector<std::string>{"fc.weight", "fc.bias"}));
  model->forward(images()).sum().backward();
  EXPECT_TRUE(model->named_parameters()["fc.weight"].grad().defined());
  model->replace_classifier(torch::nn::Sequential(torch::nn::Linear(3, 9), torch::nn::ReLU(), Linear(9, 2)));
  EXPECT_EQ(model->forward(images()).sizes(), at::IntArrayRef({2, 2}));
}

TEST(Model, WithoutAClassifierItGivesItsFeaturesAndTakesAClassifierLater) {
  const auto model = std::make_shared<MeanColour>(0);
  EXPECT_FALSE(model->has_classifier());
  EXPECT_EQ(model->forward(images()).sizes(), at::IntArrayRef({2, 3}));
  model->replace_classifier(Linear(3, 4));
  EXPECT_EQ(model->forward(images()).sizes(), at::IntArrayRef({2, 4}));
}

TEST(Model, LibtorchsReplaceModuleWorksForTheClassifierAndIsRefusedForOtherChildren) {
  const auto model = std::make_shared<MeanColour>(5);
  model->replace_module("fc", torch::nn::Linear(3, 7));
  EXPECT_EQ(model->forward(images()).sizes(), at::IntArrayRef({2, 7}));
  EXPECT_NE(usage_error([&] {
              model->replace_module("conv1", torch::nn::Linear(3, 7));
            }).find("only the classifier 'fc' can be replaced, got 'conv1'"),
            std::string::npos);
}

struct Doubled : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return 2 * x; }
};

/// Through the base class, where libtorch's own replace_module is called.
TEST(Model, AReplacementThatItCannotCallIsAnErrorInForward) {
  const auto model = std::make_shared<MeanColour>(5);
  torch::nn::Module& base = *model;
  base.replace_module("fc", std::make_shared<torch::nn::LinearImpl>(3, 6));
  EXPECT_EQ(model->forward(images()).sizes(), at::IntArrayRef({2, 6}));
  base.replace_module("fc", std::make_shared<Doubled>());
  EXPECT_NE(usage_error([&] { model->forward(images()); }).find("use replace_classifier()"),
            std::string::npos);
  model->replace_classifier(std::make_shared<Doubled>());
  EXPECT_EQ(model->forward(images())[0][0].item<double>(), 2);
}

struct DoubledLinear : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  // NOLINTNEXTLINE(bugprone-derived-method-shadowing-base-method)
  at::Tensor forward(const at::Tensor& x) { return 2 * torch::nn::LinearImpl::forward(x); }
};

TEST(Model, AReplacementOfADerivedClassIsCalledByItsOwnForwardOrNotAtAll) {
  const auto model = std::make_shared<MeanColour>(5);
  const auto doubled = std::make_shared<DoubledLinear>(3, 6);
  torch::nn::Module& base = *model;
  base.replace_module("fc", doubled);
  EXPECT_NE(usage_error([&] { model->forward(images()); }).find("use replace_classifier()"),
            std::string::npos);
  model->replace_classifier(doubled);
  EXPECT_TRUE(torch::equal(model->forward(images()), doubled->forward(images().mean({2, 3}))));
  base.replace_module("fc", torch::nn::Linear(3, 4).ptr());
  EXPECT_EQ(model->forward(images()).size(1), 4);
}

TEST(Model, NoModuleInThePlaceOfAClassifierIsAnError) {
  const auto model = std::make_shared<MeanColour>(5);
  const std::string text = usage_error([&] { model->replace_classifier(torch::nn::Linear(nullptr)); });
  EXPECT_NE(text.find("must be a module, got none"), std::string::npos);
  EXPECT_EQ(usage_error([&] { model->replace_classifier(std::shared_ptr<LinearImpl>()); }), text);
  EXPECT_EQ(usage_error([&] { model->replace_module("fc", Linear(nullptr)); }), text);
}

TEST(Model, ACloneHasTheReplacedClassifier) {
  const auto model = std::make_shared<MeanColour>(5);
  model->replace_classifier(torch::nn::Linear(3, 7));
  const auto copy = std::dynamic_pointer_cast<MeanColour>(model->clone());
  EXPECT_TRUE(torch::equal(copy->forward(images()), model->forward(images())));
  copy->replace_classifier(Linear(3, 2));
  EXPECT_EQ(model->forward(images()).size(1), 7);
}

struct Plain : Model {
  at::Tensor forward(const at::Tensor& images) override { return images; }
  bool is_segmentation() const override { return true; }
};

TEST(Model, WithoutAPlaceForAClassifierItSaysSo) {
  Plain plain;
  EXPECT_FALSE(plain.has_classifier());
  EXPECT_NE(usage_error([&] { plain.replace_classifier(Linear(3, 4)); }).find("has no classifier"),
            std::string::npos);
}

}  // namespace
}  // namespace palimpsest::nn
