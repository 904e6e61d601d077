// The gates of squeeze and excitation with the convolution behind them, against libtorch's layers in f64.
#include "palimpsest/ops/squeeze_excite_conv.h"
#include "palimpsest/memory/meter.h"
#include "tests/support/error_of.h"
#include "tests/support/relative_error.h"
#include "tests/support/tolerance.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace palimpsest::ops::tests {
namespace {

const ConvolutionOptions k1x1{{1, 1}, {0, 0}, {1, 1}, 1};

/// y, the four tensors of the excitation, the convolution's weight and bias.
std::vector<at::Tensor> tensors_of(int64_t channels, at::ScalarType dtype, bool channels_last,
                                   int64_t images = 3) {
  torch::manual_seed(7);
  const auto make = [&](at::IntArrayRef sizes) { return torch::randn(sizes, at::kDouble); };
  std::vector<at::Tensor> all{make({images, channels, 7, 5}),
                              make({6, channels, 1, 1}),
                              make({6}),
                              make({channels, 6, 1, 1}),
                              make({channels}),
                              make({8, channels, 1, 1}),
                              make({8})};
  for (at::Tensor& t : all) t = t.to(dtype);
  if (channels_last) all[0] = all[0].contiguous(at::MemoryFormat::ChannelsLast);
  for (at::Tensor& t : all) t.set_requires_grad(true);
  return all;
}

at::Tensor ours(const std::vector<at::Tensor>& t, Activation activation, SqueezeActivation squeeze,
                GateActivation gate) {
  return squeeze_excite_conv(t[0], {t[1], t[2], t[3], t[4], squeeze, gate}, t[5], t[6], k1x1, activation,
                             0.1);
}

at::Tensor activate(const at::Tensor& y, Activation activation) {
  if (activation == Activation::kSiLU) return at::silu(y);
  if (activation == Activation::kHardSwish) return at::hardswish(y);
  return activation == Activation::kLeakyReLU ? at::leaky_relu(y, 0.1) : y;
}

at::Tensor layers(const std::vector<at::Tensor>& t, Activation activation, SqueezeActivation squeeze,
                  GateActivation gate) {
  const at::Tensor z = activate(t[0], activation);
  at::Tensor g = at::conv2d(at::adaptive_avg_pool2d(z, {1, 1}), t[1], t[2]);
  g = squeeze == SqueezeActivation::kSiLU ? at::silu(g) : at::relu(g);
  g = at::conv2d(g, t[3], t[4]);
  g = gate == GateActivation::kSigmoid ? at::sigmoid(g) : at::hardsigmoid(g);
  return at::conv2d(z * g, t[5], t[6]);
}

std::vector<at::Tensor> gradients(const at::Tensor& out, const std::vector<at::Tensor>& inputs) {
  torch::manual_seed(8);
  return torch::autograd::grad({out}, inputs, {torch::randn(out.sizes(), at::kDouble).to(out.scalar_type())});
}

TEST(SqueezeExciteConv, EqualsLibtorchsLayers) {
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const bool channels_last : {false, true})
      for (const int64_t channels : {5, 64})  // 5: fewer channels than a vector has lanes
        for (const auto activation :
             {Activation::kSiLU, Activation::kHardSwish, Activation::kLeakyReLU, Activation::kIdentity})
          for (const auto squeeze : {SqueezeActivation::kReLU, SqueezeActivation::kSiLU})
            for (const auto gate : {GateActivation::kSigmoid, GateActivation::kHardSigmoid}) {
              const auto t = tensors_of(channels, dtype, channels_last);
              std::vector<at::Tensor> exact;
              for (const at::Tensor& one : t)
                exact.push_back(one.detach().to(at::kDouble).set_requires_grad(true));
              const at::Tensor got = ours(t, activation, squeeze, gate),
                               want = layers(exact, activation, squeeze, gate);
              const double limit = dtype == at::kDouble ? testing::kReorderedF64 : testing::kReorderedF32;
              // Gradients of the gates cancel: they are sums over all pixels.
              const double dlimit = dtype == at::kDouble ? limit : testing::kReducedF32;
              EXPECT_LE(testing::relative_error(got, want), limit);
              const auto dgot = gradients(got, t), dwant = gradients(want, exact);
              for (std::size_t i = 0; i < t.size(); ++i) {
                EXPECT_EQ(dgot[i].sizes(), t[i].sizes());
                EXPECT_LE(testing::relative_error(dgot[i], dwant[i]), dlimit) << "gradient " << i;
              }
            }
}

// Saved: y, which lives in any case, and numbers per image and channel. The result lives, too.
TEST(SqueezeExciteConv, KeepsNoTensorOfTheSizeOfY) {
  for (const bool channels_last : {false, true}) {
    const auto t = tensors_of(64, at::kFloat, channels_last);
    memory::Meter meter;
    const at::Tensor out = ours(t, Activation::kSiLU, SqueezeActivation::kSiLU, GateActivation::kSigmoid);
    meter.forward_done();
    const auto bytes = [](const at::Tensor& x) { return static_cast<int64_t>(x.nbytes()); };
    EXPECT_LT(meter.kept_bytes(), bytes(out) + bytes(t[0]) / 4);
  }
}

TEST(SqueezeExciteConv, ComputesOnlyTheGradientsThatAreNeeded) {
  for (std::size_t only = 0; only < 7; ++only) {
    auto t = tensors_of(32, at::kDouble, true), all = tensors_of(32, at::kDouble, true);
    for (std::size_t i = 0; i < t.size(); ++i) t[i].set_requires_grad(i == only);
    const auto want = gradients(ours(all, Activation::kSiLU, {}, {}), all);
    const auto got = gradients(ours(t, Activation::kSiLU, {}, {}), {t[only]});
    EXPECT_LE(testing::relative_error(got[0], want[only]), testing::kReorderedF64) << only;
  }
}

TEST(SqueezeExciteConv, TakesAnEmptyBatch) {
  const auto t = tensors_of(32, at::kFloat, true, /*images=*/0);
  const at::Tensor out = ours(t, Activation::kSiLU, {}, {});
  EXPECT_EQ(out.sizes(), at::IntArrayRef({0, 8, 7, 5}));
  for (const at::Tensor& g : torch::autograd::grad({out.sum()}, t))
    EXPECT_EQ(g.abs().sum().item<double>(), 0);
}

TEST(SqueezeExciteConv, NamesWhatIsWrong) {
  const auto message = [](std::size_t wrong, const at::Tensor& value) {
    auto t = tensors_of(32, at::kFloat, false);
    t[wrong] = value;
    return testing::error_of([&] { ours(t, Activation::kSiLU, {}, {}); });
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(message(0, torch::zeros({3, 32})),
           "[squeeze_excite_conv] y must be (N, C, H, W), got shape [3, 32]");
  contains(message(0, torch::zeros({3, 32, 0, 5})), "needs at least one pixel");
  contains(message(1, torch::zeros({6, 31})), "squeeze_weight must be (R, 32)");
  contains(message(2, torch::zeros({5})), "squeeze_bias needs one value per output, 6, got shape [5]");
  contains(message(3, torch::zeros({32, 5})), "excite_weight must be (32, 6)");
  contains(message(4, torch::zeros({31})), "excite_bias needs one value per output, 32");
  contains(message(5, torch::zeros({8, 31, 1, 1})), "[squeeze_excite_conv]");
}

// Gates that are given, against libtorch's layers.
TEST(GatedConv, EqualsLibtorchsLayers) {
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const bool channels_last : {false, true})
      for (const int64_t channels : {5, 64})
        for (const auto activation : {Activation::kSiLU, Activation::kLeakyReLU, Activation::kIdentity}) {
          const auto t = tensors_of(channels, dtype, channels_last);
          const at::Tensor gate = torch::randn({3, channels}, dtype);
          std::vector<at::Tensor> inputs{t[0], t[5], t[6]}, exact;
          for (const at::Tensor& one : inputs)
            exact.push_back(one.detach().to(at::kDouble).set_requires_grad(true));
          const at::Tensor got = gated_conv(t[0], gate, t[5], t[6], k1x1, activation, 0.1);
          const at::Tensor want =
              at::conv2d(activate(exact[0], activation) * gate.to(at::kDouble).view({3, channels, 1, 1}),
                         exact[1], exact[2]);
          const double limit = dtype == at::kDouble ? testing::kReorderedF64 : testing::kReorderedF32;
          EXPECT_LE(testing::relative_error(got, want), limit);
          const auto dgot = gradients(got, inputs), dwant = gradients(want, exact);
          for (std::size_t i = 0; i < inputs.size(); ++i) {
            EXPECT_LE(testing::relative_error(dgot[i], dwant[i]), limit) << "gradient " << i;
            std::vector<at::Tensor> only;
            for (std::size_t k = 0; k < inputs.size(); ++k)
              only.push_back(inputs[k].detach().set_requires_grad(k == i));
            const at::Tensor out = gated_conv(only[0], gate, only[1], only[2], k1x1, activation, 0.1);
            EXPECT_LE(testing::relative_error(gradients(out, {only[i]})[0], dwant[i]), limit)
                << i << " alone";
          }
        }
}

TEST(GatedConv, KeepsNoTensorOfTheSizeOfY) {
  for (const bool channels_last : {false, true}) {
    const auto t = tensors_of(64, at::kFloat, channels_last);
    const at::Tensor gate = torch::ones({3, 64});
    memory::Meter meter;
    const at::Tensor out = gated_conv(t[0], gate, t[5], t[6], k1x1, Activation::kReLU, 0);
    meter.forward_done();
    EXPECT_LT(meter.kept_bytes(), static_cast<int64_t>(out.nbytes() + t[0].nbytes() / 4));
  }
}

TEST(GatedConv, NamesWhatIsWrong) {
  const auto t = tensors_of(32, at::kFloat, false);
  const auto message = [&](const at::Tensor& y, const at::Tensor& gate) {
    return testing::error_of([&] { gated_conv(y, gate, t[5], t[6], k1x1, Activation::kReLU, 0); });
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const at::Tensor ones = torch::ones({3, 32});
  contains(message(torch::zeros({3, 32}), ones), "[gated_conv] y must be (N, C, H, W), got shape [3, 32]");
  contains(
      message(t[0], torch::ones({3, 31})),
      "[gated_conv] gate needs one Float per image and channel on cpu, (3, 32), got shape [3, 31] of Float");
  contains(message(t[0], ones.to(at::kDouble)), "of Double");
  contains(message(t[0], {}), "got none");
  contains(message(t[0], ones.clone().set_requires_grad(true)), "must not require a gradient; detach it");
}

TEST(SqueezeExciteConv, AutocastRoundsTheConvolutionAndNotTheGates) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    auto t = tensors_of(64, at::kFloat, /*channels_last=*/true, 2);
    t[0] = t[0].detach().to(dtype).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
    const auto run = [&] {
      return ours(t, Activation::kSiLU, SqueezeActivation::kSiLU, GateActivation::kSigmoid);
    };
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const at::Tensor got = run();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    std::vector<at::Tensor> exact;
    for (const at::Tensor& v : t) exact.push_back(v.detach().to(at::kDouble).set_requires_grad(true));
    const at::Tensor want =
        layers(exact, Activation::kSiLU, SqueezeActivation::kSiLU, GateActivation::kSigmoid);
    EXPECT_LE(testing::relative_error(got, want), 0.02);
    const auto dgot = torch::autograd::grad({got.to(at::kFloat).square().sum()}, t);
    const auto dwant = torch::autograd::grad({want.square().sum()}, exact);
    for (size_t i = 0; i < t.size(); ++i)
      EXPECT_LE(testing::relative_error(dgot[i], dwant[i]), 0.05) << "gradient " << i;
  }
}

}  // namespace
}  // namespace palimpsest::ops::tests
