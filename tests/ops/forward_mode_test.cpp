// Forward-mode differentiation: an error of every operator, recorded by autograd or not. Never a lost tangent.
#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/concat_abn_conv.h"
#include "palimpsest/ops/convolution.h"
#include "palimpsest/ops/dense_block.h"
#include "palimpsest/ops/feature_slots.h"
#include "palimpsest/ops/max_pool.h"
#include "palimpsest/ops/parallel_convolutions.h"
#include "palimpsest/ops/spatial_mean.h"
#include "palimpsest/ops/squeeze_excite_conv.h"
#include "palimpsest/ops/upsampled_loss.h"
#include "tests/support/error_of.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace palimpsest::ops::forward_mode_tests {
namespace {

using testing::error_of;
using Tensors = std::vector<at::Tensor>;

class DualLevel {
 public:
  DualLevel() : level_(torch::autograd::forward_ad::enter_dual_level()) {}
  ~DualLevel() { torch::autograd::forward_ad::exit_dual_level(level_); }
  DualLevel(const DualLevel&) = delete;
  DualLevel& operator=(const DualLevel&) = delete;

 private:
  uint64_t level_;
};

at::Tensor with_tangent(const at::Tensor& t) {
  return at::_make_dual(t, at::ones_like(t), /*level=*/0);
}

/// An operator, and the tensors that it may be differentiated by. The first is (2, 16, 6, 6), channels-last.
struct Operator {
  std::string name;
  std::function<at::Tensor(const Tensors&)> run;
  Tensors rest;
};

const ConvolutionOptions kPlain{{1, 1}, {0, 0}, {1, 1}, 1};

AbnOptions options_of(bool training, Saved saved, Activation activation) {
  AbnOptions o;
  o.training = training;
  o.saved = saved;
  o.activation = activation;
  return o;
}

std::vector<Operator> operators() {
  const at::Tensor weight = torch::rand(16), bias = torch::rand(16), mean = torch::zeros(16),
                   var = torch::ones(16), kernel = torch::randn({16, 16, 1, 1}),
                   square = torch::randn({16, 16, 3, 3}), residual = torch::randn({2, 16, 6, 6});
  std::vector<Operator> all;
  for (const bool training : {false, true}) {
    const std::string mode = training ? ", training" : ", frozen";
    const AbnOptions output = options_of(training, Saved::kOutput, Activation::kLeakyReLU),
                     before = options_of(training, Saved::kPreActivation, Activation::kReLU),
                     input = options_of(training, Saved::kInput, Activation::kReLU);
    const auto norm = [=](const Tensors& t) { return NormalizationTensors{t[1], t[2], mean, var}; };
    all.push_back({"abn" + mode,
                   [=](const Tensors& t) { return abn(t[0], norm(t), output, t[3]); },
                   {weight, bias, residual}});
    all.push_back({"abn_" + mode,
                   [=](const Tensors& t) { return abn_(t[0], norm(t), output, t[3]); },
                   {weight, bias, residual}});
    all.push_back(
        {"abn_conv" + mode,
         [=](const Tensors& t) { return abn_conv(t[0], norm(t), t[3], std::nullopt, kPlain, before); },
         {weight, bias, kernel}});
    all.push_back(
        {"abn_conv_" + mode,
         [=](const Tensors& t) { return abn_conv_(t[0], norm(t), t[3], std::nullopt, kPlain, before); },
         {weight, bias, kernel}});
    all.push_back(
        {"abn_conv_ that saves its output" + mode,
         [=](const Tensors& t) { return abn_conv_(t[0], norm(t), t[3], std::nullopt, kPlain, output); },
         {weight, bias, kernel}});
    all.push_back({"concat_abn_conv" + mode,
                   [=](const Tensors& t) {
                     return concat_abn_conv({t[0].narrow(1, 0, 8), t[0].narrow(1, 8, 8)}, norm(t), t[3],
                                            kPlain, input);
                   },
                   {weight, bias, kernel}});
    all.push_back({"dense_block" + mode,
                   [=](const Tensors& t) {
                     const ConvolutionOptions padded{{1, 1}, {1, 1}, {1, 1}, 1};
                     return dense_block(
                         t[0], {{norm(t), before, t[3], {t[4], t[5], mean, var}, before, t[6], padded}});
                   },
                   {weight, bias, kernel, weight, bias, square}});
  }
  all.push_back({"concat_abn_conv without a normalization",
                 [](const Tensors& t) {
                   return concat_abn_conv({t[0].narrow(1, 0, 8), t[0].narrow(1, 8, 8)}, std::nullopt, t[1],
                                          kPlain, {});
                 },
                 {kernel}});
  all.push_back(
      {"activate_conv",
       [](const Tensors& t) { return activate_conv(t[0], t[1], std::nullopt, kPlain, Activation::kReLU, 0); },
       {kernel}});
  all.push_back({"squeeze_excite_conv",
                 [](const Tensors& t) {
                   return squeeze_excite_conv(t[0], {t[1], t[2], t[3], t[4]}, t[5], std::nullopt, kPlain,
                                              Activation::kSiLU, 0);
                 },
                 {torch::randn({4, 16}), torch::rand(4), torch::randn({16, 4}), bias, kernel}});
  all.push_back({"gated_conv",
                 [](const Tensors& t) {
                   return gated_conv(t[0], t[1], t[2], std::nullopt, kPlain, Activation::kSiLU, 0);
                 },
                 {torch::rand({2, 16}), kernel}});
  all.push_back({"parallel_convolutions",
                 [](const Tensors& t) { return parallel_convolutions(t[0], {t[1], t[2]}, {kPlain, kPlain}); },
                 {kernel, kernel.clone()}});
  all.push_back(
      {"convolution of our own",
       [](const Tensors& t) { return convolution(t[0], t[1], std::nullopt, {{1, 1}, {1, 1}, {1, 1}, 16}); },
       {torch::randn({16, 1, 3, 3})}});
  all.push_back({"max_pool2d", [](const Tensors& t) { return ops::max_pool2d(t[0], {2, 2}); }, {}});
  all.push_back({"spatial_mean", [](const Tensors& t) { return spatial_mean(t[0]); }, {}});
  all.push_back({"feature_slots", [](const Tensors& t) { return FeatureSlots(t[0], 16).result(); }, {}});
  all.push_back({"upsampled_cross_entropy",
                 [](const Tensors& t) {
                   return upsampled_cross_entropy(t[0], torch::zeros({2, 12, 12}, at::kLong)).loss;
                 },
                 {}});
  return all;
}

TEST(ForwardMode, IsAnErrorOfEveryOperatorWhetherAutogradRecordsItOrNot) {
  for (const Operator& op : operators()) {
    for (const bool grad_mode : {true, false}) {
      const at::AutoGradMode mode(grad_mode);
      Tensors inputs{torch::randn({2, 16, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast)};
      inputs.insert(inputs.end(), op.rest.begin(), op.rest.end());
      const at::Tensor x = inputs[0].clone();
      const DualLevel level;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        Tensors given = inputs;
        given[i] = with_tangent(inputs[i]);
        const std::string error = error_of([&] { op.run(given); });
        const bool is_clear = error.find("with a tangent; use torch's own layers") != std::string::npos ||
                              error.find("forward AD") != std::string::npos ||
                              error.find("jvp is not implemented") != std::string::npos;
        EXPECT_TRUE(is_clear) << op.name << ", input " << i << ", grad mode " << grad_mode << ": '" << error
                              << "'";
        EXPECT_TRUE(inputs[0].equal(x)) << op.name;
      }
      EXPECT_EQ(error_of([&] { op.run(inputs); }), "") << op.name;
    }
  }
}

TEST(ForwardMode, IsAnErrorOfBackwardToo) {
  for (const Operator& op : operators()) {
    const at::Tensor x =
        torch::randn({2, 16, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
    Tensors inputs{x * 1};
    inputs.insert(inputs.end(), op.rest.begin(), op.rest.end());
    const at::Tensor z = op.run(inputs);
    const DualLevel level;
    Tensors dx;
    const std::string error =
        error_of([&] { dx = torch::autograd::grad({z}, {x}, {with_tangent(at::ones_like(z))}); });
    // Where backward is made of libtorch's operators, the tangent is right.
    if (error.empty()) {
      EXPECT_TRUE(dx[0]._fw_grad(0).defined()) << op.name;
    }
  }
}

TEST(RefuseTangents, SeesTensorsOptionalTensorsAndLists) {
  const at::Tensor plain = torch::randn({2, 3}), undefined;
  const DualLevel level;
  const at::Tensor dual = with_tangent(plain);
  const OptionalTensor none, given = dual;
  const Tensors list{plain, dual};
  EXPECT_EQ(
      error_of([&] { refuse_tangents("abn", plain, undefined, none, at::TensorList(list).slice(0, 1)); }),
      "");
  for (const auto& call : std::initializer_list<std::function<void()>>{
           [&] { refuse_tangents("abn", plain, dual); }, [&] { refuse_tangents("abn", none, given); },
           [&] { refuse_tangents("abn", at::TensorList(list)); }}) {
    const std::string error = error_of(call);
    EXPECT_NE(
        error.find("[abn] the operator has no forward-mode differentiation, got a tensor of shape [2, 3]"),
        std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace palimpsest::ops::forward_mode_tests
