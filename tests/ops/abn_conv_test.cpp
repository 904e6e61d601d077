// Normalization, activation and convolution in one node against libtorch's own layers.
#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/kernels/activation.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "tests/ops/abn_case.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <limits>

namespace palimpsest::ops::tests {
namespace {

struct Geometry {
  int64_t kernel = 1, groups = 1;
  ConvolutionOptions options{{1, 1}, {0, 0}, {1, 1}, 1};
  bool bias = false;
  int64_t channels = 8, outputs = 16, images = 3;
};

const Geometry kGeometries[] = {
    {1, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, true},
    {3, 2, {{2, 1}, {1, 2}, {1, 2}, 2}, false},
    {3, 8, {{1, 1}, {1, 1}, {1, 1}, 8}, true},
};

struct Gradients {
  at::Tensor out, dx, dweight, dbias, dkernel, dkernel_bias, running_mean, running_var;
};

using Block = std::function<at::Tensor(at::Tensor x, const NormalizationTensors&, const at::Tensor& kernel,
                                       const OptionalTensor& kernel_bias)>;

/// Channels-last in f32, kernels of ours read the ReLU of y in some or all passes.
const Geometry kWideGeometries[] = {
    {1, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, false, 64},         // all
    {1, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, true, 64},          // backward
    {1, 1, {{2, 2}, {0, 0}, {1, 1}, 1}, false, 64},         // all but the gradient of y
    {3, 1, {{2, 2}, {1, 1}, {1, 1}, 1}, true, 64},          // the gradient of the kernel
    {3, 1, {{1, 1}, {1, 1}, {1, 1}, 1}, false, 32},         // the same, because there are few pixels
    {3, 1, {{1, 1}, {1, 1}, {1, 1}, 1}, false, 40, 33, 7},  // all
    {3, 1, {{1, 1}, {2, 2}, {2, 2}, 1}, true, 32, 32, 7},   // all, also with a bias
    {3, 2, {{1, 1}, {1, 1}, {1, 1}, 2}, false, 48, 36, 7},  // all
};

Gradients run(at::ScalarType dtype, const Geometry& g, bool channels_last, double weight_scale,
              const Block& block) {
  torch::manual_seed(7);
  at::Tensor base =
      torch::randn({g.images, g.channels, 9, 10}, at::kDouble).mul(1.5).add(0.3).to(at::kFloat).to(dtype);
  if (channels_last) base = base.contiguous(at::MemoryFormat::ChannelsLast);
  base.set_requires_grad(true);
  const auto vector = [&](double scale) {
    return torch::randn(g.channels, at::kDouble).mul(scale).to(at::kFloat).to(dtype);
  };
  NormalizationTensors norm{vector(weight_scale).set_requires_grad(true), vector(0.4).set_requires_grad(true),
                            vector(1), vector(1).abs()};
  const at::Tensor kernel = torch::randn({g.outputs, g.channels / g.groups, g.kernel, g.kernel}, at::kDouble)
                                .to(at::kFloat)
                                .to(dtype)
                                .set_requires_grad(true);
  OptionalTensor kernel_bias;
  if (g.bias)
    kernel_bias = torch::randn(g.outputs, at::kDouble).to(at::kFloat).to(dtype).set_requires_grad(true);
  const at::Tensor out = block(base * 1, norm, kernel, kernel_bias);
  const at::Tensor dout = torch::randn(out.sizes(), at::kDouble).to(at::kFloat).to(dtype);
  out.backward(dout);
  return {out.detach(),       base.grad(),      norm.weight->grad(),
          norm.bias->grad(),  kernel.grad(),    g.bias ? kernel_bias->grad() : at::Tensor(),
          *norm.running_mean, *norm.running_var};
}

Gradients truth(const Geometry& g, Activation activation, double weight_scale) {
  return run(at::kDouble, g, false, weight_scale,
             [&](const at::Tensor& x, const NormalizationTensors& n, const at::Tensor& kernel,
                 const OptionalTensor& bias) {
               const at::Tensor y =
                   at::batch_norm(x, n.weight, n.bias, n.running_mean, n.running_var, true, 0.1, 1e-5, false);
               return at::conv2d(activate(y, activation, 0.01), kernel, bias, g.options.stride,
                                 g.options.padding, g.options.dilation, g.options.groups);
             });
}

void expect_equal(const Gradients& got, const Gradients& want, double limit) {
  const auto check = [&](const char* what, const at::Tensor& a, const at::Tensor& b) {
    ASSERT_EQ(a.defined(), b.defined()) << what;
    if (a.defined()) {
      EXPECT_LE(relative_error(a, b), limit) << what;
    }
  };
  check("output", got.out, want.out);
  check("dx", got.dx, want.dx);
  check("dweight", got.dweight, want.dweight);
  check("dbias", got.dbias, want.dbias);
  check("dkernel", got.dkernel, want.dkernel);
  check("dkernel_bias", got.dkernel_bias, want.dkernel_bias);
  check("running_mean", got.running_mean, want.running_mean);
  check("running_var", got.running_var, want.running_var);
}

TEST(AbnConv, EveryStrategyAndActivationHasTheGradientsOfThePlainLayers) {
  for (const Geometry& g : kGeometries) {
    for (const auto& [activation, name, is_listed] : kernels::kActivations) {
      const Gradients want = truth(g, activation, 1);
      for (const Saved saved : kAllSaved) {
        if (!can_save(activation, saved)) continue;
        for (const auto dtype : {at::kFloat, at::kDouble}) {
          for (const bool in_place : {false, true}) {
            for (const bool channels_last : {false, true}) {
              SCOPED_TRACE(std::string(name) + ", saved " + std::to_string(static_cast<int>(saved)) +
                           (in_place ? ", in place" : "") + (channels_last ? ", channels last" : ""));
              AbnOptions options;
              options.activation = activation;
              options.saved = saved;
              const Gradients got = run(dtype, g, channels_last, 1,
                                        [&](at::Tensor x, const NormalizationTensors& n,
                                            const at::Tensor& kernel, const OptionalTensor& bias) {
                                          return in_place ? abn_conv_(x, n, kernel, bias, g.options, options)
                                                          : abn_conv(x, n, kernel, bias, g.options, options);
                                        });
              expect_equal(got, want, 2 * tolerance_across_kinks(dtype));
            }
          }
        }
      }
    }
  }
}

TEST(AbnConv, AConvolutionThatAppliesTheReLUHasTheGradientsOfThePlainLayers) {
  AbnOptions options;
  options.activation = Activation::kReLU;
  options.saved = Saved::kPreActivation;
  for (const Geometry& g : kWideGeometries) {
    const Gradients want = truth(g, Activation::kReLU, 1);
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(c10::str(g.kernel, "x", g.kernel, ", strides ", g.options.stride, g.bias ? ", bias" : "",
                            in_place ? ", in place" : ""));
      const Gradients got = run(at::kFloat, g, /*channels_last=*/true, 1,
                                [&](at::Tensor x, const NormalizationTensors& n, const at::Tensor& kernel,
                                    const OptionalTensor& bias) {
                                  return in_place ? abn_conv_(x, n, kernel, bias, g.options, options)
                                                  : abn_conv(x, n, kernel, bias, g.options, options);
                                });
      expect_equal(got, want, 2 * tolerance_across_kinks(at::kFloat));
    }
  }
}

TEST(AbnConv, ActivateConvThatAppliesTheReLUHasTheGradientsOfThePlainLayers) {
  for (const Geometry& g : kWideGeometries) {
    SCOPED_TRACE(c10::str(g.kernel, "x", g.kernel, ", strides ", g.options.stride, g.bias ? ", bias" : ""));
    torch::manual_seed(3);
    const at::Tensor y = torch::randn({g.images, g.channels, 9, 10})
                             .contiguous(at::MemoryFormat::ChannelsLast)
                             .set_requires_grad(true);
    const at::Tensor kernel =
        torch::randn({g.outputs, g.channels / g.groups, g.kernel, g.kernel}).set_requires_grad(true);
    OptionalTensor bias;
    if (g.bias) bias = torch::randn(g.outputs).set_requires_grad(true);
    const at::Tensor out = activate_conv(y, kernel, bias, g.options, Activation::kReLU, 0);
    OptionalTensor bias64;
    if (bias) bias64 = bias->to(at::kDouble);
    const at::Tensor want = at::conv2d(at::relu(y.to(at::kDouble)), kernel.to(at::kDouble), bias64,
                                       g.options.stride, g.options.padding, g.options.dilation, g.groups);
    EXPECT_LE(relative_error(out, want), tolerance_across_kinks(at::kFloat));
    const at::Tensor dout = torch::randn_like(out);
    // All gradients, and each alone: each choice takes other kernels.
    for (const std::vector<at::Tensor>& wanted :
         {std::vector<at::Tensor>{y, kernel}, std::vector<at::Tensor>{y}, std::vector<at::Tensor>{kernel}}) {
      std::vector<at::Tensor> all = wanted;
      if (bias) all.push_back(*bias);
      const auto got_gradients = torch::autograd::grad({out}, all, {dout}, /*retain_graph=*/true);
      const auto want_gradients =
          torch::autograd::grad({want}, all, {dout.to(at::kDouble)}, /*retain_graph=*/true);
      for (size_t i = 0; i < all.size(); ++i)
        EXPECT_LE(relative_error(got_gradients[i], want_gradients[i]), tolerance_across_kinks(at::kFloat))
            << i;
    }
  }
}

TEST(AbnConv, AConvolutionThatAppliesTheReLUAllocatesNoActivatedTensor) {
  AbnOptions options;
  options.activation = Activation::kReLU;
  options.saved = Saved::kPreActivation;
  const NormalizationTensors norm{torch::ones(64).set_requires_grad(true), torch::zeros(64), torch::zeros(64),
                                  torch::ones(64)};
  const at::Tensor kernel = torch::randn({16, 64, 1, 1}).set_requires_grad(true);
  const at::Tensor leaf =
      torch::randn({4, 64, 56, 56}).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
  at::Tensor x = leaf + 1;
  const int64_t before = memory::memory_stats().current_bytes;
  memory::Meter meter;
  const at::Tensor out =
      abn_conv_(std::move(x), norm, kernel, std::nullopt, kWideGeometries[0].options, options);
  EXPECT_LT(meter.peak_bytes() - before, out.numel() * 4 + leaf.numel());  // far less than another tensor
}

TEST(AbnConv, WeightsOfZeroSaveTheNormalizedInputBesideY) {
  // Every channel has a weight of 0, or one of them; kernels of ours apply the ReLU, or libtorch's do not.
  const auto with_zero = [](const Block& block, bool one) {
    return [block, one](at::Tensor x, const NormalizationTensors& n, const at::Tensor& kernel,
                        const OptionalTensor& bias) {
      if (one) {
        const at::NoGradGuard no_grad;
        at::Tensor(*n.weight).abs_().add_(0.5).select(0, 5).zero_();
      }
      return block(std::move(x), n, kernel, bias);
    };
  };
  AbnOptions options;
  options.saved = Saved::kPreActivation;
  for (const Activation activation : {Activation::kReLU, Activation::kGELU})
    for (const auto& [dtype, channels_last, geometry] :
         {std::tuple{at::kDouble, false, kGeometries[0]}, std::tuple{at::kFloat, true, kWideGeometries[0]},
          std::tuple{at::kFloat, true, kWideGeometries[3]}})
      for (const bool in_place : {false, true})
        for (const bool one : {false, true}) {
          const Geometry& g = geometry;
          options.activation = activation;
          const Gradients want =
              run(at::kDouble, g, false, one ? 1 : 0,
                  with_zero(
                      [&](const at::Tensor& x, const NormalizationTensors& n, const at::Tensor& kernel,
                          const OptionalTensor& bias) {
                        const at::Tensor y = at::batch_norm(x, n.weight, n.bias, n.running_mean,
                                                            n.running_var, true, 0.1, 1e-5, false);
                        return at::conv2d(activate(y, activation, 0.01), kernel, bias, g.options.stride,
                                          g.options.padding, g.options.dilation, g.options.groups);
                      },
                      one));
          reset_abn_fallback_stats();
          const Gradients got = run(dtype, g, channels_last, one ? 1 : 0,
                                    with_zero(
                                        [&](at::Tensor x, const NormalizationTensors& n,
                                            const at::Tensor& kernel, const OptionalTensor& bias) {
                                          return in_place ? abn_conv_(x, n, kernel, bias, g.options, options)
                                                          : abn_conv(x, n, kernel, bias, g.options, options);
                                        },
                                        one));
          EXPECT_EQ(abn_fallback_stats().channels, one ? 1 : 0);
          EXPECT_EQ(abn_fallback_stats().layers, one ? 0 : 1);
          expect_equal(got, want, 2 * tolerance_across_kinks(dtype));
        }
}

TEST(AbnConv, ActivateConvOfSlope0IsThatOfReLUAlsoForInfinities) {
  const at::Tensor kernel = torch::rand({16, 8, 1, 1});
  for (const int64_t width : {3, 40}) {
    at::Tensor y = torch::randn({2, 8, 5, width});
    y[0][1][2][2] = -std::numeric_limits<float>::infinity();
    const ConvolutionOptions options{{1, 1}, {0, 0}, {1, 1}, 1};
    const at::Tensor want = activate_conv(y, kernel, std::nullopt, options, Activation::kReLU, 0);
    EXPECT_TRUE(want.isfinite().all().item<bool>());
    for (const auto activation : {Activation::kLeakyReLU, Activation::kELU})
      EXPECT_TRUE(activate_conv(y, kernel, std::nullopt, options, activation, 0).equal(want));
  }
}

TEST(AbnConv, ActivateConvKeepsItsInputOnly) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    SCOPED_TRACE(std::string(name));
    const Geometry& g = kGeometries[1];
    torch::manual_seed(3);
    const at::Tensor kernel = torch::randn({16, 4, 3, 3}, at::kDouble).set_requires_grad(true);
    const at::Tensor t = torch::randn({3, 8, 9, 10}, at::kDouble).set_requires_grad(true);
    const at::Tensor out = activate_conv(t, kernel, std::nullopt, g.options, activation, 0.3);
    const at::Tensor want = at::conv2d(activate(t, activation, 0.3), kernel, {}, g.options.stride,
                                       g.options.padding, g.options.dilation, 2);
    EXPECT_LE(relative_error(out, want), tolerance_across_kinks(at::kDouble));
    const at::Tensor dout = torch::randn_like(out);
    const auto got_gradients = torch::autograd::grad({out}, {t, kernel}, {dout});
    const auto want_gradients = torch::autograd::grad({want}, {t, kernel}, {dout});
    EXPECT_LE(relative_error(got_gradients[0], want_gradients[0]), tolerance_across_kinks(at::kDouble));
    EXPECT_LE(relative_error(got_gradients[1], want_gradients[1]), tolerance_across_kinks(at::kDouble));
  }
}

TEST(AbnConv, EveryStrategyKeepsOneTensor) {
  for (const Saved saved : kAllSaved) {
    const AbnOptions options = options_with(saved);
    const Geometry& g = kGeometries[2];
    at::Tensor leaf = torch::randn({8, 64, 28, 28}).set_requires_grad(true);
    const at::Tensor kernel = torch::randn({64, 8, 3, 3}).set_requires_grad(true);
    const NormalizationTensors norm{torch::ones(64).set_requires_grad(true),
                                    torch::zeros(64).set_requires_grad(true), torch::zeros(64),
                                    torch::ones(64)};
    at::Tensor out;
    memory::Meter meter;
    {
      at::Tensor x = leaf + 1;
      out = abn_conv_(std::move(x), norm, kernel, std::nullopt, g.options, options);
    }
    meter.forward_done();
    const int64_t tensor = leaf.numel() * 4, vectors = 64 * 8 * 4 + 4096;
    const int64_t bits = saved == Saved::kOutputBit ? tensor / 32 : 0;
    EXPECT_LE(meter.kept_bytes(), 2 * tensor + bits + vectors)
        << static_cast<int>(saved);  // the result and one more
    EXPECT_GE(meter.kept_bytes(), 2 * tensor + bits) << static_cast<int>(saved);
    out.sum().backward();
  }
}

TEST(AbnConv, UnderAutocastTheConvolutionRunsInItsType) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  for (const Saved saved : kAllSaved) {
    const AbnOptions options = options_with(saved);
    const Gradients got = run(at::kFloat, kGeometries[0], false, 1,
                              [&](at::Tensor x, const NormalizationTensors& n, const at::Tensor& kernel,
                                  const OptionalTensor& bias) {
                                return abn_conv_(x, n, kernel, bias, kGeometries[0].options, options);
                              });
    EXPECT_EQ(got.out.scalar_type(), at::kBFloat16);
    EXPECT_EQ(got.dkernel.scalar_type(), at::kFloat);
    EXPECT_LE(relative_error(got.dx, truth(kGeometries[0], options.activation, 1).dx),
              tolerance_across_kinks(at::kBFloat16));
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST(AbnConv, AThousandPassesLeaveNothingBehind) {
  const at::Tensor leaf = torch::randn({2, 8, 4, 4}).set_requires_grad(true);
  const at::Tensor kernel = torch::randn({4, 8, 1, 1}).set_requires_grad(true);
  const NormalizationTensors norm{torch::ones(8).set_requires_grad(true), torch::zeros(8), {}, {}};
  enum Form { kPlain, kView, kWithoutBackward };
  const auto pass = [&](Saved saved, bool consume, Form form) {
    at::Tensor x = leaf * 1;
    if (form == kView) x = x.view({2, 8, 2, 8}).slice(1, 0, 8);  // its base must not be held either
    const auto layer = consume ? &abn_conv_
                               : +[](at::Tensor t, const NormalizationTensors& n, const at::Tensor& k,
                                     const OptionalTensor& b, const ConvolutionOptions& c,
                                     const AbnOptions& o) { return abn_conv(t, n, k, b, c, o); };
    const at::Tensor out = layer(x, norm, kernel, {}, kGeometries[0].options, options_with(saved));
    if (form != kWithoutBackward) torch::autograd::grad({out.sum()}, {leaf, *norm.weight, kernel});
  };
  for (const Saved saved : kAllSaved) {
    for (const bool consume : {false, true}) {
      for (const Form form : {kPlain, kView, kWithoutBackward}) {
        pass(saved, consume, form);
        const int64_t before = memory::memory_stats().current_bytes;
        for (int i = 0; i < 1000; ++i) pass(saved, consume, form);
        EXPECT_EQ(memory::memory_stats().current_bytes, before)
            << "saved " << static_cast<int>(saved) << (consume ? ", over x" : "") << ", form " << form;
      }
    }
  }
}

TEST(AbnConv, AConvolutionThatCannotRunLeavesTheInputAndTheStatistics) {
  const at::Tensor before = torch::randn({2, 4, 5, 5}), kernel = torch::randn({3, 4, 1, 1});
  const ConvolutionOptions plain{{1, 1}, {0, 0}, {1, 1}, 1};
  struct Case {
    at::Tensor kernel;
    OptionalTensor bias;
    const char* message;
  };
  for (const auto saved : {Saved::kPreActivation, Saved::kOutput})
    for (const Case& c :
         {Case{kernel, torch::randn(5),
               "[abn_conv] the convolution's bias needs one value per output channel, 3, got"},
          Case{kernel, torch::randn({3, 1}), "got shape [3, 1]"},
          Case{kernel, torch::randn(3, at::kDouble), "must have the dtype of its weight, Float, got Double"},
          Case{kernel, torch::empty({3}, at::Device(at::kMeta)),
               "bias must be on the device of x, cpu, got meta"},
          Case{torch::empty({3, 4, 1, 1}, at::Device(at::kMeta)),
               {},
               "weight must be on the device of x, cpu, got meta"},
          Case{torch::randn({3, 4, 6, 1}), {}, "the window must fit into the padded image, got 6 pixels"}}) {
      at::Tensor x = before.clone();
      const NormalizationTensors norm{torch::rand(4) + 0.5, torch::randn(4), torch::zeros(4), torch::ones(4)};
      AbnOptions options;
      options.saved = saved;
      const std::string message = error_of([&] { abn_conv_(x, norm, c.kernel, c.bias, plain, options); });
      EXPECT_NE(message.find(c.message), std::string::npos) << message;
      EXPECT_TRUE(x.equal(before)) << c.message;
      EXPECT_TRUE(norm.running_mean->equal(torch::zeros(4)) && norm.running_var->equal(torch::ones(4)));
    }
}

TEST(AbnConv, WhatDoesNotFitIsRefused) {
  const at::Tensor x = torch::randn({2, 4, 5, 5}), kernel = torch::randn({4, 4, 1, 1});
  const NormalizationTensors norm;
  const ConvolutionOptions plain{{1, 1}, {0, 0}, {1, 1}, 1};
  AbnOptions relu;
  relu.activation = Activation::kReLU;
  EXPECT_NE(
      error_of([&] { abn_conv(x, norm, kernel, {}, plain, relu); }).find("invertible activation, got 'relu'"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              abn_conv(x, norm, torch::randn({4, 3, 1, 1}), {}, plain, {});
            }).find("channels of x, 4, got 3 * 1"),
            std::string::npos);
  EXPECT_NE(
      error_of([&] { abn_conv(x, norm, torch::randn({4, 4, 1}), {}, plain, {}); }).find("as many dimensions"),
      std::string::npos);
  EXPECT_NE(
      error_of([&] { abn_conv(x, norm, kernel, {}, {{1}, {0, 0}, {1, 1}, 1}, {}); }).find("got 1, 2 and 2"),
      std::string::npos);
  const std::string other =
      error_of([&] { activate_conv(x, torch::randn({4, 3, 1, 1}), {}, plain, Activation::kReLU, 0); });
  EXPECT_NE(other.find("[activate_conv] weight.size(1) * groups must be the channels of x, 4, got 3 * 1"),
            std::string::npos)
      << other;
}

}  // namespace
}  // namespace palimpsest::ops::tests
