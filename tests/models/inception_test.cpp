#include "palimpsest/models/inception.h"

#include "tests/models/support.h"

#include <string>

namespace palimpsest::models {
namespace {

// Inception's branches, told in libtorch's functions: each convolution normalized by itself.
TEST(InceptionBlock, NormalizesEachOfItsConvolutionsByItself) {
  torch::manual_seed(7);
  for (const auto strategy : {nn::Strategy::kStandard, nn::Strategy::kInplace2}) {
    ModelOptions options;
    options.strategy = strategy;
    const auto model = make("inception_v2_cifar_narrow", options);
    model->to(torch::kFloat64);
    const auto block = model->named_children()["inception3a"];
    for (auto& p : block->parameters())
      if (p.dim() == 1) p.detach().uniform_(0.5, 1.5);
    const auto w = block->named_parameters();
    const auto x = torch::randn({2, 48, 8, 8}, torch::kFloat64);
    int64_t from = 0;  // the place of an end in the stack
    const auto normalize = [](const at::Tensor& y, const at::Tensor& weight, const at::Tensor& bias) {
      return torch::leaky_relu(torch::batch_norm(y, weight, bias, {}, {}, true, 0.1, 1e-5, false), 0.01);
    };
    const auto unit = [&](const at::Tensor& input, const std::string& branch, int number, int64_t padding) {
      const std::string n = std::to_string(number);
      return normalize(torch::conv2d(input, w[branch + ".conv" + n + ".weight"], {}, 1, padding),
                       w[branch + ".bn" + n + ".weight"], w[branch + ".bn" + n + ".bias"]);
    };
    const auto end = [&](const at::Tensor& input, const std::string& conv, int64_t padding) {
      const auto y = torch::conv2d(input, w[conv + ".weight"], {}, 1, padding);
      const int64_t to = from + y.size(1);
      const auto z = normalize(y, w["bn.weight"].slice(0, from, to), w["bn.bias"].slice(0, from, to));
      from = to;
      return z;
    };
    const auto a = end(x, "branch1.conv1", 0);
    const auto b = end(unit(x, "branch2", 1, 0), "branch2.conv2", 1);
    const auto c = end(unit(unit(x, "branch3", 1, 0), "branch3", 2, 1), "branch3.conv3", 1);
    const auto d = end(torch::avg_pool2d(x, 3, 1, 1), "branch4.conv1", 0);
    auto* forward = dynamic_cast<InceptionBlock*>(block.get());
    ASSERT_NE(forward, nullptr);
    EXPECT_LE(relative_error(forward->forward(x), torch::cat({a, b, c, d}, 1)), kReorderedNetworkF64)
        << nn::to_string(strategy);
  }
}

}  // namespace
}  // namespace palimpsest::models
