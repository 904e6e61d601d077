#include "palimpsest/models/densenet.h"
#include "palimpsest/models/fold.h"

#include "tests/models/support.h"
#include "tests/support/tolerance.h"

#include <map>
#include <optional>

namespace palimpsest::models {
namespace {

constexpr nn::DenseStrategy kForms[] = {nn::DenseStrategy::kNaive, nn::DenseStrategy::kSharedGradient,
                                        nn::DenseStrategy::kShared, nn::DenseStrategy::kCheckpoint,
                                        nn::DenseStrategy::kFused};

std::shared_ptr<nn::Model> short_network(DenseStem stem, std::optional<nn::DenseStrategy> form,
                                         nn::Strategy strategy = nn::Strategy::kStoreY) {
  BackboneOptions options;
  options.classes = 5;
  options.norm = {strategy, nn::Activation::kReLU};
  options.dense_strategy = form;
  auto model = std::make_shared<DenseNet>(DenseNetShape{"short", {2, 3, 2}, 4, stem}, options);
  fill_by_formula(*model);
  return model;
}

/// The same network as a plain stack of libtorch's functions, from a state dict.
class PlainStack {
 public:
  explicit PlainStack(const torch::nn::Module& model) {
    for (const auto& [name, tensor] : nn::state_dict(model)) values_[name] = tensor.detach().clone();
    for (auto& [name, tensor] : values_)
      if (tensor.is_floating_point() && name.find("running") == std::string::npos) tensor.requires_grad_();
  }

  at::Tensor logits(const at::Tensor& images, bool training) {
    at::Tensor x;
    if (get("features.conv0.weight").size(2) == 7) {
      x = at::conv2d(images, get("features.conv0.weight"), {}, 2, 3);
      x = at::max_pool2d(act("features.norm0", x, training), 3, 2, 1);
    } else if (has("features.conv1.weight")) {
      x = at::conv2d(images, get("features.conv0.weight"), {}, 2, 1);
      for (const char* number : {"1", "2"})
        x = at::conv2d(act("features.norm" + std::to_string(*number - '1'), x, training),
                       get("features.conv" + std::string(number) + ".weight"), {}, 1, 1);
      if (has("features.norm2.weight")) x = act("features.norm2", x, training);
      x = at::max_pool2d(x, 3, 2, 1);
    } else {
      x = at::conv2d(images, get("features.conv0.weight"), {}, 1, 1);
    }
    const bool post = !has("features.norm5.weight") && !has("features.norm_final.weight");
    if (post && x.size(2) == images.size(2)) x = act("features.norm0", x, training);
    for (int b = 1; has(layer(b, 1) + "conv1.weight"); ++b) {
      for (int l = 1; has(layer(b, l) + "conv1.weight"); ++l) {
        const std::string name = layer(b, l);
        at::Tensor h = at::conv2d(post ? x : act(name + "norm1", x, training), get(name + "conv1.weight"));
        h = at::conv2d(act(name + (post ? "norm1" : "norm2"), h, training), get(name + "conv2.weight"), {}, 1,
                       1);
        if (post) h = act(name + "norm2", h, training);
        x = at::cat({x, h}, 1);
      }
      const std::string name = "features.transition" + std::to_string(b);
      if (has(name + ".conv.weight") && post)
        x = at::avg_pool2d(act(name + ".norm", at::conv2d(x, get(name + ".conv.weight")), training), 2);
      else if (has(name + ".conv.weight"))
        x = at::avg_pool2d(at::conv2d(act(name + ".norm", x, training), get(name + ".conv.weight")), 2);
    }
    const std::string last = has("features.norm5.weight") ? "features.norm5" : "features.norm_final";
    x = at::adaptive_avg_pool2d(post ? x : act(last, x, training), {1, 1}).flatten(1);
    return at::linear(x, get("classifier.weight"), get("classifier.bias"));
  }

  at::Tensor get(const std::string& name) const { return values_.at(name); }

 private:
  static std::string layer(int block, int layer) {
    return "features.denseblock" + std::to_string(block) + ".denselayer" + std::to_string(layer) + ".";
  }
  bool has(const std::string& name) const { return values_.contains(name); }
  at::Tensor act(const std::string& name, const at::Tensor& x, bool training) {
    return at::relu(at::batch_norm(x, get(name + ".weight"), get(name + ".bias"), get(name + ".running_mean"),
                                   get(name + ".running_var"), training, 0.1, 1e-5, false));
  }

  std::map<std::string, at::Tensor> values_;
};

TEST(DenseNet, EveryFormIsThePlainStackOfLibtorchsLayers) {
  for (const auto stem : {DenseStem::kSmall, DenseStem::kLarge, DenseStem::kDeep})
    for (const bool training : {true, false})
      for (const auto form : kForms) {
        auto model = short_network(stem, form);
        model->train(training);
        PlainStack plain(*model);
        const at::Tensor images = images_by_formula(stem == DenseStem::kSmall ? 12 : 48);
        const auto loss = [](const at::Tensor& logits) {
          return (logits * torch::sin(torch::arange(logits.numel(), torch::kFloat64)).view_as(logits)).sum();
        };
        const at::Tensor want = plain.logits(images, training), got = model->forward(images);
        EXPECT_LE(relative_error(got, want), testing::kReorderedF64) << nn::to_string(form);
        loss(want).backward();
        loss(got).backward();
        for (const auto& p : model->named_parameters())
          EXPECT_LE(relative_error(p.value().grad(), plain.get(p.key()).grad()), testing::kReorderedDeepF64)
              << nn::to_string(form) << " " << p.key();
        for (const auto& b : model->named_buffers())
          if (!b.key().ends_with("num_batches_tracked")) {
            EXPECT_LE(relative_error(b.value(), plain.get(b.key())), testing::kReorderedF64) << b.key();
          }
      }
}

TEST(DenseNet, SinglePrecisionLogitsOfEveryFormAgree) {
  at::Tensor want;
  for (const auto form : kForms) {
    auto model = short_network(DenseStem::kLarge, form);
    model->to(torch::kFloat32);
    const at::Tensor got = model->forward(images_by_formula(48).to(torch::kFloat32));
    if (!want.defined()) want = got;
    EXPECT_LE(relative_error(got, want), testing::kReorderedF32) << nn::to_string(form);
  }
}

TEST(DenseNet, WithoutADenseStrategyTheStrategyDecides) {
  using nn::Strategy;
  const auto of = [](Strategy strategy, nn::Activation activation) {
    return nn::default_dense_strategy({strategy, activation});
  };
  EXPECT_EQ(of(Strategy::kStandard, nn::Activation::kReLU), nn::DenseStrategy::kSharedGradient);
  EXPECT_EQ(of(Strategy::kInplace2, nn::Activation::kLeakyReLU), nn::DenseStrategy::kFused);
  EXPECT_EQ(of(Strategy::kStoreY, nn::Activation::kSiLU), nn::DenseStrategy::kShared);
  EXPECT_NO_THROW(
      short_network(DenseStem::kSmall, std::nullopt, Strategy::kStandard)->forward(images_by_formula(12)));
}

TEST(DenseNet, AnImageThatTheTransitionsHalveToNothingIsRefused) {
  ModelOptions options;
  options.classes = 3;
  const torch::NoGradGuard no_grad;
  for (const auto& [name, least] : {std::pair{"densenet_bc16_k4", 4}, std::pair{"densenet121", 29}}) {
    const auto model = make(name, options);
    model->eval();
    EXPECT_EQ(model->forward(torch::zeros({1, 3, least, least})).size(1), 3);
    for (const auto& [height, width] : {std::pair{least - 1, 40}, std::pair{40, least - 1}}) {
      const auto message = usage_error([&] { model->forward(torch::zeros({1, 3, height, width})); });
      EXPECT_NE(message.find("at least " + std::to_string(least) + " pixels across"), std::string::npos)
          << message;
    }
  }
}

TEST(DenseNet, TheFormForCifarHasAnyDepthAndGrowth) {
  const auto shape = small_densenet("densenet_bc22_k7");
  ASSERT_TRUE(shape);
  EXPECT_EQ(shape->blocks, (std::vector<int64_t>{3, 3, 3}));
  EXPECT_EQ(shape->growth, 7);
  EXPECT_TRUE(is_name("densenet_bc1000_k12"));
  for (const char* other :
       {"densenet_bc", "densenet_bc22", "densenet_bc22_k", "densenet_bc22_k7x", "densenet_bcx_k7"})
    EXPECT_FALSE(small_densenet(other)) << other;
  for (const char* wrong : {"densenet_bc23_k7", "densenet_bc4_k7", "densenet_bc22_k0"})
    EXPECT_NE(usage_error([&] { make(wrong, {}); }).find("needs 6n + 4 layers"), std::string::npos) << wrong;
  ModelOptions options;
  options.classes = 3;
  const auto model = make("densenet_bc16_k4", options);
  EXPECT_EQ(model->forward(torch::randn({2, 3, 9, 11})).sizes(), at::IntArrayRef({2, 3}));
}

TEST(DenseNet, AnOptionThatDoesNotFitIsNamed) {
  ModelOptions options;
  options.dense_strategy = nn::DenseStrategy::kFused;
  EXPECT_NE(usage_error([&] { make("resnet18", options); }).find("takes no dense strategy, got fused"),
            std::string::npos);
  options.strategy = nn::Strategy::kStandard;
  EXPECT_NE(usage_error([&] { make("densenet_bc16_k4", options); }).find("'fused' saves one tensor"),
            std::string::npos);
  options = {};
  options.output_stride = 8;
  EXPECT_NE(usage_error([&] { make("densenet_bc16_k4", options); }).find("takes no output stride"),
            std::string::npos);
}

TEST(PostActivation, EqualsAPlainStackByEveryDenseStrategy) {
  for (const auto stem : {DenseStem::kLarge, DenseStem::kSmall, DenseStem::kDeep})
    for (const auto form : {nn::DenseStrategy::kNaive, nn::DenseStrategy::kShared,
                            nn::DenseStrategy::kCheckpoint, nn::DenseStrategy::kFused}) {
      BackboneOptions options;
      options.classes = 5;
      options.norm = {nn::Strategy::kStoreY, nn::Activation::kReLU};
      options.dense_strategy = form;
      options.pre_activation = false;
      DenseNet model(DenseNetShape{"short", {2, 3, 2}, 4, stem}, options);
      fill_by_formula(model);
      PlainStack plain(model);
      const auto images = images_by_formula(32);
      const auto got = model.forward(images), want = plain.logits(images, true);
      EXPECT_LE(relative_error(got, want), kReorderedNetworkF64)
          << nn::to_string(form) << static_cast<int>(stem);
      got.sin().sum().backward();
      want.sin().sum().backward();
      for (const auto& p : model.named_parameters()) {
        const auto exact = plain.get(p.key()).grad();
        EXPECT_LE((p.value().grad() - exact).norm().item<double>(),
                  kReorderedNetworkF64 * std::max(exact.norm().item<double>(), testing::kVanishingF64))
            << p.key() << " " << nn::to_string(form);
      }
    }
}

TEST(PostActivation, FoldsEveryNormalization) {
  auto model = make("densenet_bc16_k4", {.classes = 3, .pre_activation = false});
  model->eval();
  const at::NoGradGuard no_grad;
  const auto images = torch::randn({1, 3, 32, 32});
  const auto want = model->forward(images);
  FoldReport report;
  const auto folded = fold(model, &report);
  EXPECT_TRUE(report.kept.empty()) << ::testing::PrintToString(report.kept);
  EXPECT_LE(relative_error(folded->forward(images), want), testing::kReorderedF32);
}

TEST(DenseNetDropout, DropsInTrainingByTheSeed) {
  const auto images = torch::randn({2, 3, 32, 32});
  for (const bool pre : {true, false}) {
    torch::manual_seed(1);
    const auto model = make("densenet_bc16_k4", {.classes = 3, .pre_activation = pre, .dropout = 0.5});
    const auto logits = [&](uint64_t seed) {
      torch::manual_seed(seed);
      return model->forward(images);
    };
    EXPECT_TRUE(torch::equal(logits(2), logits(2)));
    EXPECT_FALSE(torch::equal(logits(2), logits(3)));
    model->eval();
    EXPECT_TRUE(torch::equal(logits(2), logits(3)));
  }
}

}  // namespace
}  // namespace palimpsest::models
