#include "palimpsest/models/weights.h"

#include "tests/models/support.h"

namespace palimpsest::models {
namespace {

ModelOptions with_classes(int64_t classes) {
  ModelOptions options;
  options.classes = classes;
  return options;
}

nn::StateDict copies_of(const torch::nn::Module& model) {
  nn::StateDict tensors;
  for (const auto& [key, tensor] : nn::state_dict(model)) tensors.emplace_back(key, tensor.detach().clone());
  return tensors;
}

at::Tensor& of(nn::StateDict& tensors, const std::string& key) {
  for (auto& [name, tensor] : tensors)
    if (name == key) return tensor;
  throw std::out_of_range(key);
}

template <class Action>
std::string checkpoint_error(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected palimpsest::Error, nothing was thrown";
  return "";
}

TEST(Weights, WrappersAndTrainingStateAreTakenOff) {
  nn::StateDict tensors{{"module.conv1.weight", torch::zeros(1)},
                        {"_orig_mod.module.fc.bias", torch::zeros(1)},
                        {"bn1.module.weight", torch::zeros(1)},
                        {"palimpsest.momentum.fc.bias", torch::zeros(1)}};
  EXPECT_EQ(unwrap(tensors), 2);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].first, "conv1.weight");
  EXPECT_EQ(tensors[1].first, "fc.bias");
  EXPECT_EQ(tensors[2].first, "bn1.module.weight");
}

TEST(Weights, KeysOfThePapersReleaseTakeOurNames) {
  nn::StateDict tensors{{"module.mod1.bn1.weight", torch::zeros(1)},
                        {"module.classifier.fc.weight", torch::zeros(1)},
                        {"classifier.fc.bias", torch::zeros(1)},
                        {"classifier.fcn", torch::zeros(1)}};
  EXPECT_EQ(unwrap(tensors), 3);
  EXPECT_EQ(tensors[0].first, "mod1.bn1.weight");
  EXPECT_EQ(tensors[1].first, "fc.weight");
  EXPECT_EQ(tensors[2].first, "fc.bias");
  EXPECT_EQ(tensors[3].first, "classifier.fcn");
}

TEST(Weights, KeysOfTheReleasesDenseNetTakeOurNames) {
  const std::pair<const char*, const char*> names[] = {
      {"mod1.conv1.weight", "features.conv0.weight"},
      {"mod1.bn2.running_var", "features.norm1.running_var"},
      {"mod2.convs1.0.bn.weight", "features.denseblock1.denselayer1.norm1.weight"},
      {"mod5.convs3.47.conv.weight", "features.denseblock4.denselayer48.conv2.weight"},
      {"mod5.convs1.47.conv.weight", "features.denseblock4.denselayer48.conv1.weight"},
      {"mod3.convs3.9.bn.bias", "features.denseblock2.denselayer10.norm2.bias"},
      {"tra2.bn.bias", "features.transition1.norm.bias"},
      {"tra4.conv.weight", "features.transition3.conv.weight"},
      {"bn_out.running_mean", "features.norm5.running_mean"},
      {"classifier.fc.weight", "classifier.weight"},
      // Not the release's:
      {"mod5.convs1.x.conv.weight", "mod5.convs1.x.conv.weight"},
      {"mod5.convs1.99999999999.bn.bias", "mod5.convs1.99999999999.bn.bias"},
      {"tra2.pool.weight", "tra2.pool.weight"},
      {"mod1.pool.weight", "mod1.pool.weight"}};
  nn::StateDict tensors;
  for (const auto& [theirs, ours] : names)
    tensors.emplace_back(std::string("module.") + theirs, torch::zeros(1));
  unwrap(tensors);
  for (std::size_t i = 0; i < std::size(names); ++i) EXPECT_EQ(tensors[i].first, names[i].second);
}

TEST(Weights, AuxiliaryClassifiersAreTakenOff) {
  nn::StateDict tensors{{"module.aux1.conv.conv.weight", torch::zeros(1)},
                        {"aux2.fc2.bias", torch::zeros(1)},
                        {"AuxLogits.fc.weight", torch::zeros(1)},
                        {"conv1.conv.weight", torch::zeros(1)}};
  unwrap(tensors);
  ASSERT_EQ(tensors.size(), 1u);
  EXPECT_EQ(tensors[0].first, "conv1.conv.weight");
}

TEST(Weights, TheClassifierOfNumberedLayersIsTheLast) {
  const auto layer = [](int number, int64_t rows) {
    return std::pair{"classifier." + std::to_string(number) + ".weight", torch::zeros({rows, 2})};
  };
  EXPECT_EQ(class_count({layer(0, 9), layer(3, 8), layer(6, 7)}), 7);
  EXPECT_EQ(class_count({layer(10, 7), layer(4, 8)}), 7);
  EXPECT_EQ(class_count({{"classifier.x.weight", torch::zeros({3, 2})},
                         {"classifier..weight", torch::zeros({3, 2})}}),
            std::nullopt);
}

// AlexNet's hidden layers are classifier.1 and classifier.4; only classifier.6 is reset.
TEST(Weights, ResettingANumberedClassifierKeepsTheHiddenLayersBeforeIt) {
  const auto file = copies_of(*make("alexnet", with_classes(7)));
  EXPECT_EQ(class_count(file), 7);
  const auto model = make("alexnet", with_classes(3));
  const auto message = checkpoint_error([&] { check_start(*model, file, false, "w"); });
  EXPECT_NE(message.find("classifier.6.weight is (7, 4096)"), std::string::npos) << message;
  EXPECT_NE(message.find("--reset-classifier"), std::string::npos) << message;
  EXPECT_EQ(start_from(*model, file, true, "w"), Start::kAllButClassifier);
  auto expected = file;
  for (const auto& [key, tensor] : nn::state_dict(*model))
    EXPECT_TRUE(key.starts_with("classifier.6.") || torch::equal(tensor, of(expected, key))) << key;
}

TEST(Weights, TwoKeysThatBecomeOneAreAnError) {
  nn::StateDict tensors{{"fc.weight", at::zeros({2})}, {"module.fc.weight", at::ones({2})}};
  testing::expect_error(ErrorKind::kCheckpoint, {"fc.weight", "two tensors"}, [&] { unwrap(tensors); });
}

TEST(Weights, OldKeysOfDenseLayersTakeTheirPresentForm) {
  nn::StateDict tensors;
  const std::string layer = "features.denseblock4.denselayer16.";
  for (const std::string& key :
       {"module." + layer + "norm.1.running_var", layer + "conv.2.weight", layer + "norm2.weight",
        layer + "norm.3.weight", layer + "norm.1", std::string("features.transition1.norm.1.weight"),
        std::string("denselayer"), std::string("denselayer1"), std::string("denselayer1.norm.")})
    tensors.emplace_back(key, torch::zeros(1));
  EXPECT_EQ(unwrap(tensors), 2);
  EXPECT_EQ(tensors[0].first, layer + "norm1.running_var");
  EXPECT_EQ(tensors[1].first, layer + "conv2.weight");
  EXPECT_EQ(tensors[2].first, layer + "norm2.weight");
  EXPECT_EQ(tensors[3].first, layer + "norm.3.weight");
  EXPECT_EQ(tensors[4].first, layer + "norm.1");
  EXPECT_EQ(tensors[5].first, "features.transition1.norm.1.weight");
}

TEST(Weights, OnlyNetworksOfThePackageWithoutCountersAreTakenForItsFiles) {
  const nn::StateDict counted{{"bn_out.num_batches_tracked", torch::zeros({}, torch::kInt64)}};
  const nn::StateDict uncounted{{"bn_out.weight", torch::zeros(1)}};
  EXPECT_EQ(weight_format("auto", "resnext50_preact", uncounted), WeightFormat::kInplaceAbn);
  EXPECT_EQ(weight_format("auto", "deeplabv3_resnext50_preact", uncounted), WeightFormat::kInplaceAbn);
  for (const char* model :
       {"wide_resnet38", "wide_resnet38_a2", "deeplabv3_wide_resnet38", "densenet264_deep_stem"})
    EXPECT_EQ(weight_format("auto", model, uncounted), WeightFormat::kInplaceAbn) << model;
  EXPECT_EQ(weight_format("auto", "densenet264", uncounted), WeightFormat::kTorchvision);
  EXPECT_EQ(weight_format("auto", "resnext50_preact", counted), WeightFormat::kTorchvision);
  EXPECT_EQ(weight_format("auto", "resnet50", uncounted), WeightFormat::kTorchvision);
  EXPECT_EQ(weight_format("auto", "resnet50_preact", uncounted), WeightFormat::kTorchvision);
  EXPECT_EQ(weight_format("inplace_abn", "resnet50", counted), WeightFormat::kInplaceAbn);
  for (const auto& name : weight_format_names())
    EXPECT_NO_THROW(weight_format(name, "resnet50", counted)) << name;
  EXPECT_NE(usage_error([&] { weight_format("torchvison", "resnet50", counted); }).find("'torchvision'"),
            std::string::npos);
}

TEST(Weights, TheModelThatAFileFitsIsFoundWhateverItsClasses) {
  EXPECT_EQ(fitting_model(copies_of(*make("resnet34", with_classes(7)))), "resnet34");
  EXPECT_EQ(fitting_model(copies_of(*make("deeplabv3_resnet18", with_classes(4)))), "deeplabv3_resnet18");
  EXPECT_EQ(fitting_model({{"features.0.weight", torch::zeros({64, 3, 3, 3})}}), "");
  EXPECT_EQ(class_count(copies_of(*make("resnet18", with_classes(7)))), 7);
  EXPECT_EQ(class_count({}), std::nullopt);
  EXPECT_EQ(class_count({{"fc.weight", at::empty({1'000'000'000, 0})}}), std::nullopt);
}

TEST(Weights, PlainOnesAreInTheModelsOrderAndPrecision) {
  const auto model = make("resnet18", with_classes(3));
  auto tensors = copies_of(*model);
  std::reverse(tensors.begin(), tensors.end());
  std::erase_if(tensors, [](const auto& entry) { return entry.first == "bn1.num_batches_tracked"; });
  of(tensors, "conv1.weight") = of(tensors, "conv1.weight").to(torch::kHalf);
  of(tensors, "fc.weight") = of(tensors, "fc.weight").to(torch::kDouble);
  of(tensors, "bn1.weight").neg_();
  const auto plain = plain_weights(tensors, *model, WeightFormat::kTorchvision);
  const auto wanted = nn::state_dict(*model);
  ASSERT_EQ(plain.tensors.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(plain.tensors[i].first, wanted[i].first);
  EXPECT_EQ(plain.counters, 1);
  EXPECT_EQ(plain.rescaled, 0);
  auto result = plain.tensors;
  EXPECT_EQ(of(result, "conv1.weight").scalar_type(), torch::kFloat);
  EXPECT_EQ(of(result, "fc.weight").scalar_type(), torch::kDouble);
  EXPECT_TRUE(torch::equal(of(result, "bn1.weight"), of(tensors, "bn1.weight")));
}

TEST(Weights, ThePackagesScalesBecomeTheirAbsoluteValuePlusEps) {
  const auto model = make("resnet18", with_classes(3));
  auto tensors = copies_of(*model);
  of(tensors, "layer1.0.bn2.weight").copy_(torch::linspace(-1, 1, 64));
  const auto plain = plain_weights(tensors, *model, WeightFormat::kInplaceAbn);
  EXPECT_EQ(plain.rescaled, 20);
  auto result = plain.tensors;
  EXPECT_TRUE(torch::equal(of(result, "layer1.0.bn2.weight"), torch::linspace(-1, 1, 64).abs() + 1e-5));
  EXPECT_TRUE(torch::equal(of(result, "layer1.0.bn2.bias"), of(tensors, "layer1.0.bn2.bias")));
  EXPECT_TRUE(torch::equal(of(result, "fc.weight"), of(tensors, "fc.weight")));
}

class StartFrom : public ::testing::Test {
 protected:
  const nn::StateDict file_ = [] {
    torch::manual_seed(11);
    return copies_of(*make("resnet18", with_classes(3)));
  }();

  /// Returns whether the model's entries below `prefix` that `chosen` accepts equal the file's entries.
  template <class Chosen>
  bool holds_file(const nn::Model& model, const std::string& prefix, const Chosen& chosen) {
    auto tensors = copies_of(model);
    for (const auto& [key, tensor] : file_)
      if (chosen(key) && !torch::equal(of(tensors, prefix + key), tensor)) return false;
    return true;
  }
};

bool of_body(const std::string& key) {
  return !key.starts_with("fc.");
}

TEST_F(StartFrom, AFileOfTheSameNetworkFillsAll) {
  const auto model = make("resnet18", with_classes(3));
  ASSERT_FALSE(holds_file(*model, "", of_body));
  EXPECT_EQ(start_from(*model, file_, false, "w"), Start::kAll);
  EXPECT_TRUE(holds_file(*model, "", [](const auto&) { return true; }));
}

TEST_F(StartFrom, OtherClassesNeedAClassifierOfTheirOwn) {
  const auto model = make("resnet18", with_classes(4));
  const auto before = copies_of(*model);
  const auto message = checkpoint_error([&] { start_from(*model, file_, false, "'w'"); });
  for (const char* part :
       {"'w' does not fit", "fc.weight is (3, 512) instead of (4, 512)", "--reset-classifier"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_FALSE(holds_file(*model, "", of_body)) << "changed by a refused file";
  EXPECT_EQ(start_from(*model, file_, true, "w"), Start::kAllButClassifier);
  EXPECT_TRUE(holds_file(*model, "", of_body));
  auto after = copies_of(*model), fresh = before;
  EXPECT_TRUE(torch::equal(of(after, "fc.weight"), of(fresh, "fc.weight")));
}

TEST_F(StartFrom, AClassificationNetworkFillsTheBodyOfASegmentationNetwork) {
  const auto model = make("deeplabv3_resnet18", with_classes(9));
  auto fresh = copies_of(*model);
  EXPECT_EQ(start_from(*model, file_, false, "w"), Start::kBody);
  EXPECT_TRUE(holds_file(*model, "body.", of_body));
  auto after = copies_of(*model);
  EXPECT_TRUE(torch::equal(of(after, "head.red_conv.weight"), of(fresh, "head.red_conv.weight")));
}

TEST_F(StartFrom, AnotherNetworkIsRefused) {
  const auto model = make("resnet34", with_classes(3));
  const auto message = checkpoint_error([&] { start_from(*model, file_, true, "w"); });
  EXPECT_NE(message.find("layer1.2.conv1.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("use the model that it was made with"), std::string::npos) << message;
}

}  // namespace
}  // namespace palimpsest::models
