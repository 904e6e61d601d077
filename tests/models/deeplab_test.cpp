#include "palimpsest/models/deeplab.h"
#include "tests/models/support.h"

#include <map>

namespace palimpsest::models {
namespace {

namespace F = torch::nn::functional;

// The head as the paper tells it, from libtorch's functions: five branches, each normalized and activated by
// itself, stacked to 1280 channels, one convolution over all of them.
at::Tensor head_in_words(const std::map<std::string, at::Tensor>& w, const at::Tensor& x) {
  const auto norm_act = [&](const at::Tensor& y, const std::string& name, int64_t from, int64_t to) {
    const auto part = [&](const char* which) { return w.at(name + "." + which).slice(0, from, to); };
    const auto n = F::batch_norm(
        y, {}, {}, F::BatchNormFuncOptions().weight(part("weight")).bias(part("bias")).training(true));
    return torch::leaky_relu(n, 0.01);
  };
  std::vector<at::Tensor> branches;
  const int64_t dilations[] = {1, 12, 24, 36};
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t padding = i == 0 ? 0 : dilations[i];
    const auto y =
        torch::conv2d(x, w.at("map_convs." + std::to_string(i) + ".weight"), {}, 1, padding, dilations[i]);
    branches.push_back(norm_act(y, "map_bn", 256 * i, 256 * (i + 1)));
  }
  const auto pooled =
      torch::conv2d(torch::adaptive_avg_pool2d(x, {1, 1}), w.at("global_pooling_conv.weight"));
  branches.push_back(norm_act(pooled, "global_pooling_bn", 0, 256).expand({-1, -1, x.size(2), x.size(3)}));
  const auto stacked = torch::cat(branches, 1);
  EXPECT_EQ(stacked.size(1), 1280);
  const auto reduce = torch::cat({w.at("red_conv.weight"), w.at("pool_red_conv.weight")}, 1);
  return norm_act(torch::conv2d(stacked, reduce), "red_bn", 0, 256);
}

TEST(DeepLabV3Head, IsThePapersStackOf1280Channels) {
  torch::manual_seed(11);
  for (const auto strategy : {nn::Strategy::kStandard, nn::Strategy::kInplace2}) {
    const auto head = std::make_shared<DeepLabV3Head>(24, 256, nn::NormOptions{strategy});
    head->to(torch::kFloat64);
    std::map<std::string, at::Tensor> weights;
    for (auto& [name, tensor] : nn::state_dict(*head)) {
      if (name.ends_with("bias")) tensor.detach().normal_(0, 0.3);
      weights[name] = tensor;
    }
    // 40 pixels across: every dilation has taps that are not padding.
    const auto x = torch::randn({2, 24, 40, 40}, torch::kFloat64);
    EXPECT_LE(relative_error(head->forward(x), head_in_words(weights, x)), kReorderedNetworkF64)
        << nn::to_string(strategy);
  }
}

TEST(DeepLabV3, TrainingOnOneImageIsRefusedWithTheBatchSize) {
  for (const auto strategy : {nn::Strategy::kStandard, nn::Strategy::kInplace2}) {
    ModelOptions options;
    options.strategy = strategy;
    options.classes = 3;
    const auto model = make("deeplabv3_resnet18_narrow", options);
    const auto message = usage_error([&] { model->forward(torch::randn({1, 3, 64, 64})); });
    EXPECT_NE(message.find("at least 2 images in training, got 1"), std::string::npos) << message;
    model->eval();
    EXPECT_NO_THROW(model->forward(torch::randn({1, 3, 64, 64})));
  }
}

TEST(DeepLabV3, LogitsHaveTheImagesSizeAlsoWhereTheStrideDoesNotDivideIt) {
  ModelOptions options;
  options.classes = 3;
  for (const int64_t output_stride : {8, 16}) {
    options.output_stride = output_stride;
    const auto model = make("deeplabv3_resnet18_narrow", options);
    EXPECT_TRUE(model->is_segmentation());
    EXPECT_EQ(model->forward(torch::randn({2, 3, 61, 83})).sizes(), at::IntArrayRef({2, 3, 61, 83}));
  }
}

}  // namespace
}  // namespace palimpsest::models
