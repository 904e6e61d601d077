// Operators under autocast: the types of inputs and results, the tensors saved for backward, and the
// gradients, compared with plain layers in double over operands rounded to 16 bits.
#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/recompute.h"
#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/concat_abn_conv.h"
#include "palimpsest/ops/convolution.h"
#include "palimpsest/ops/dense_block.h"
#include "palimpsest/ops/linear.h"
#include "palimpsest/ops/max_pool.h"
#include "tests/support/relative_error.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace palimpsest::ops::autocast_tests {
namespace {

using palimpsest::testing::relative_error;
using Tensors = std::vector<at::Tensor>;

/// 16-bit storage, with 16-bit or f32 arithmetic.
struct Storage {
  at::ScalarType type;
  bool compute_in_f32;

  double limit() const { return palimpsest::testing::tolerance(type).relative_l2; }
  amp::AutocastOptions options() const { return {.cache = false, .compute_in_f32 = compute_in_f32}; }
};
constexpr Storage kStorages[] = {
    {at::kHalf, false}, {at::kHalf, true}, {at::kBFloat16, false}, {at::kBFloat16, true}};

const ops::ConvolutionOptions kPlain{{1, 1}, {1, 1}, {1, 1}, 2};
// Of wide channels: channels-last, kernels that widen 16-bit values as they read them take these.
const ops::ConvolutionOptions kPointwise{{1, 1}, {0, 0}, {1, 1}, 1}, kStrided{{2, 2}, {0, 0}, {1, 1}, 1},
    kWindow{{1, 1}, {1, 1}, {1, 1}, 1};

/// Random values that 16 bits can hold: rounding them is exact, so the truth can start from them.
at::Tensor half_values(at::IntArrayRef sizes, at::ScalarType type, bool channels_last) {
  const auto t = torch::randn(sizes).to(type).to(at::kFloat);
  return channels_last ? t.contiguous(at::MemoryFormat::ChannelsLast) : t;
}

/// A bias that the product does not see: few kernels take one.
at::Tensor with_bias(const at::Tensor& y, const at::Tensor& bias) {
  return y + bias.view({-1, 1, 1}).to(y.scalar_type());
}

/// A product of x, weight and bias.
using Product = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>;

struct Case {
  std::string name;
  std::vector<int64_t> x, weight;
  Product ours, plain;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"convolution",
       {2, 8, 7, 6},
       {12, 4, 3, 3},
       [](auto& x, auto& w, auto& b) { return ops::convolution(x, w, b, kPlain); },
       [](auto& x, auto& w, auto& b) { return at::conv2d(x, w, b, 1, 1, 1, 2); }},
      {"activate_conv",
       {2, 8, 7, 6},
       {12, 4, 3, 3},
       [](auto& x, auto& w, auto& b) { return ops::activate_conv(x, w, b, kPlain, Activation::kReLU, 0); },
       [](auto& x, auto& w, auto& b) { return at::conv2d(at::relu(x), w, b, 1, 1, 1, 2); }},
      {"wide 1x1 convolution",
       {2, 64, 9, 6},
       {80, 64, 1, 1},
       [](auto& x, auto& w, auto& b) { return with_bias(ops::convolution(x, w, {}, kPointwise), b); },
       [](auto& x, auto& w, auto& b) { return with_bias(at::conv2d(x, w), b); }},
      {"wide 1x1 convolution of stride 2",
       {2, 300, 9, 6},
       {80, 300, 1, 1},
       [](auto& x, auto& w, auto& b) { return ops::convolution(x, w, b, kStrided); },
       [](auto& x, auto& w, auto& b) { return at::conv2d(x, w, b, 2); }},
      {"wide 3x3 activate_conv",
       {4, 64, 12, 13},
       {48, 64, 3, 3},
       [](auto& x, auto& w, auto& b) {
         return with_bias(ops::activate_conv(x, w, {}, kWindow, Activation::kReLU, 0), b);
       },
       [](auto& x, auto& w, auto& b) { return with_bias(at::conv2d(at::relu(x), w, {}, 1, 1), b); }},
      {"wide 1x1 activate_conv with a bias",
       {2, 64, 9, 6},
       {80, 64, 1, 1},
       [](auto& x, auto& w, auto& b) {
         return ops::activate_conv(x, w, b, kPointwise, Activation::kReLU, 0);
       },
       [](auto& x, auto& w, auto& b) { return at::conv2d(at::relu(x), w, b); }},
      {"linear",
       {3, 5, 16},
       {7, 16},
       [](auto& x, auto& w, auto& b) { return ops::linear(x, w, b); },
       [](auto& x, auto& w, auto& b) { return at::linear(x, w, b); }},
  };
  return all;
}

/// Output, then the gradients of x, weight and bias; not of the weight if it is frozen.
Tensors run(const Product& product, const Tensors& operands, const at::Tensor& dout,
            bool frozen_weight = false) {
  Tensors leaves;
  for (const auto& t : operands) leaves.push_back(t.detach().clone().set_requires_grad(true));
  if (frozen_weight) leaves[1].set_requires_grad(false);
  const at::Tensor out = product(leaves[0], leaves[1], leaves[2]);
  if (frozen_weight) leaves.erase(leaves.begin() + 1);
  auto all = torch::autograd::grad({out}, leaves, {dout.to(out.scalar_type())});
  all.insert(all.begin(), out.detach());
  return all;
}

TEST(Autocast, ProductsHaveTheGradientsOfPlainLayersAndTakeF32Weights) {
  for (const Case& c : cases()) {
    for (const Storage& storage : kStorages) {
      for (const bool channels_last : {false, true}) {
        if (channels_last && c.x.size() != 4) continue;
        SCOPED_TRACE(c.name + " " + c10::toString(storage.type) + (storage.compute_in_f32 ? ", in f32" : "") +
                     (channels_last ? ", channels last" : ""));
        torch::manual_seed(5);
        const Tensors operands{half_values(c.x, storage.type, channels_last),
                               half_values(c.weight, storage.type, channels_last),
                               half_values({c.weight[0]}, storage.type, false)};
        Tensors exact;
        for (const auto& t : operands) exact.push_back(t.to(at::kDouble));
        const auto dout =
            half_values(c.plain(operands[0], operands[1], operands[2]).sizes(), storage.type, false);
        const Tensors want = run(c.plain, exact, dout.to(at::kDouble));
        const amp::AutocastGuard guard(at::kCPU, storage.type, storage.options());
        const Tensors got = run(c.ours, operands, dout);
        EXPECT_EQ(got[0].scalar_type(), storage.type);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_LE(relative_error(got[i], want[i]), storage.limit()) << "result " << i;
          EXPECT_EQ(got[i].scalar_type(), i == 0 ? storage.type : at::kFloat) << "of the operands";
          EXPECT_TRUE(torch::equal(got[i], got[i].to(storage.type).to(got[i].scalar_type())))
              << "was stored in 16 bits";
        }
        const Tensors with_frozen_weight = run(c.ours, operands, dout, /*frozen_weight=*/true);
        for (size_t i = 0; i < with_frozen_weight.size(); ++i)
          EXPECT_LE(relative_error(with_frozen_weight[i], want[i < 2 ? i : i + 1]), storage.limit())
              << "result " << i << " with a frozen weight";
      }
    }
  }
}

TEST(Autocast, APassInF32TakesItsBatchInParts) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  // The f32 copies of x and the output take 8 MiB per image: 2 images per part, the last part of 1.
  const std::vector<int64_t> x{17, 16, 256, 256}, weight{16, 8, 3, 3};
  const Case& c = cases()[0];
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    for (const bool channels_last : {false, true}) {
      SCOPED_TRACE(c10::str(type, channels_last ? ", channels last" : ""));
      torch::manual_seed(6);
      const Tensors operands{half_values(x, type, channels_last), half_values(weight, type, channels_last),
                             half_values({16}, type, false)};
      const auto dout = half_values(x, type, channels_last).mul_(1.0 / 256).to(type);
      const auto got = [&] {
        const amp::AutocastGuard guard(at::kCPU, type, {.cache = false, .compute_in_f32 = true});
        memory::Meter meter;
        Tensors results = run(c.ours, operands, dout);
        // The 16-bit x, output, gradients and operands, and a part of x, its gradient and that of the output.
        const int64_t stored = 5 * 2 * operands[0].numel() + 2 * static_cast<int64_t>(operands[0].nbytes());
        if (memory::counting_allocator_installed()) {
          EXPECT_LE(meter.peak_bytes() - meter.base_bytes(), stored + 3 * 8 * kMiB + 4 * kMiB);
        }
        return results;
      }();
      Tensors exact;
      for (const auto& t : operands) exact.push_back(t.to(at::kDouble));
      const Tensors want = run(c.plain, exact, dout.to(at::kDouble));
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(relative_error(got[i], want[i]), palimpsest::testing::tolerance(type).relative_l2)
            << "result " << i;
      EXPECT_EQ(got[0].is_contiguous(at::MemoryFormat::ChannelsLast), channels_last);
      EXPECT_EQ(got[1].is_contiguous(at::MemoryFormat::ChannelsLast), channels_last);
    }
  }
}

TEST(Autocast, ANormalizationWhoseReLUTheConvolutionReadsHasTheValuesOfSeparateLayers) {
  for (const Storage& storage : kStorages)
    for (const int64_t window : {1, 3})
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(c10::str(storage.type, storage.compute_in_f32 ? ", in f32, " : ", ", window, "x", window,
                              in_place ? ", in place" : ""));
        torch::manual_seed(8);
        const ops::ConvolutionOptions options{{1, 1}, {window / 2, window / 2}, {1, 1}, 1};
        const auto x = half_values({4, 64, 12, 13}, storage.type, true).to(storage.type);
        const Tensors parameters{torch::rand(64) + 0.5, torch::randn(64),
                                 torch::randn({48, 64, window, window})};
        ops::AbnOptions relu, identity;
        relu.activation = Activation::kReLU;
        relu.activation_param = 0;
        relu.saved = ops::Saved::kPreActivation;
        identity.activation = Activation::kIdentity;
        const amp::AutocastGuard guard(at::kCPU, storage.type, storage.options());
        const auto results = [&](bool fused) {
          Tensors leaves{x.clone()};
          for (const auto& t : parameters) leaves.push_back(t.clone());
          for (auto& t : leaves) t.set_requires_grad(true);
          ops::NormalizationTensors norm;
          norm.weight = leaves[1];
          norm.bias = leaves[2];
          const at::Tensor in = leaves[0].clone();
          at::Tensor out;
          if (!fused)
            out = ops::convolution(at::relu(ops::abn(in, norm, identity)), leaves[3], {}, options);
          else if (in_place)
            out = ops::abn_conv_(in, norm, leaves[3], {}, options, relu);
          else
            out = ops::abn_conv(in, norm, leaves[3], {}, options, relu);
          torch::manual_seed(9);
          Tensors all =
              torch::autograd::grad({out}, leaves, {torch::randn(out.sizes()).to(out.scalar_type())});
          all.push_back(out.detach());
          return all;
        };
        const Tensors got = results(true), want = results(false);
        EXPECT_TRUE(torch::equal(got.back(), want.back()));
        for (size_t i = 0; i + 1 < got.size(); ++i) {
          EXPECT_EQ(got[i].scalar_type(), want[i].scalar_type()) << i;
          EXPECT_LE(relative_error(got[i], want[i].to(at::kDouble)), storage.limit()) << "gradient " << i;
        }
      }
}

TEST(Autocast, KernelsThatWidenAsTheyReadTakeNoCopies) {
  // In f32, x alone would take 16 MiB more.
  for (const auto type : {at::kHalf, at::kBFloat16})
    for (const int64_t window : {1, 3}) {
      SCOPED_TRACE(c10::str(type, ", ", window, "x", window));
      const ops::ConvolutionOptions options{{1, 1}, {window / 2, window / 2}, {1, 1}, 1};
      const auto x = half_values({2, 128, 128, 128}, type, true).to(type).set_requires_grad(true);
      const auto weight = torch::randn({128, 128, window, window}).set_requires_grad(true);
      const amp::AutocastGuard guard(at::kCPU, type, {.cache = false, .compute_in_f32 = true});
      const auto step = [&] {
        const at::Tensor y = ops::activate_conv(x, weight, {}, options, Activation::kReLU, 0);
        torch::autograd::grad({y}, {x, weight}, {y.detach()});
      };
      step();  // the kernels' threads keep their memory
      memory::Meter meter;
      step();
      if (memory::counting_allocator_installed()) {
        const auto images = static_cast<int64_t>(x.nbytes()), weights = static_cast<int64_t>(weight.nbytes());
        EXPECT_LE(meter.peak_bytes() - meter.base_bytes(), 2 * images + 4 * weights);  // y and dx
      }
    }
}

TEST(Autocast, LayersRunInTheTypeOfTheirInputWithF32Parameters) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const bool in_place : {false, true}) {
      const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
      auto layer = std::make_shared<nn::InPlaceABNImpl>(nn::InPlaceABNOptions(8).in_place(in_place));
      const auto leaf = torch::randn({2, 8, 6, 6}).to(type).set_requires_grad(true);
      auto y = layer->forward(leaf * 1);
      EXPECT_EQ(y.scalar_type(), type);
      y = ops::max_pool2d(y, 2, {}, 0);
      EXPECT_EQ(y.scalar_type(), type);
      y.sum().backward();
      EXPECT_EQ(leaf.grad().scalar_type(), type);
      for (const auto& parameter : layer->parameters()) EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
      EXPECT_EQ(layer->running_mean.scalar_type(), at::kFloat);
      EXPECT_TRUE(layer->running_var.isfinite().all().item<bool>());
    }
  }
}

TEST(Autocast, NoCopyOfAWeightIsKept) {
  const amp::AutocastGuard guard(at::kCPU, at::kHalf, {.cache = false});
  const auto weight = torch::randn({256, 256, 1, 1}).set_requires_grad(true);
  const auto matrix = torch::randn({256, 256}).set_requires_grad(true);
  const auto x = torch::randn({1, 256, 2, 2}).to(at::kHalf), rows = torch::randn({2, 256}).to(at::kHalf);
  const ops::ConvolutionOptions pointwise{{1, 1}, {0, 0}, {1, 1}, 1};
  const ops::NormalizationTensors norm;
  ops::AbnOptions stored;
  stored.saved = ops::Saved::kPreActivation;
  ops::AbnOptions relu = stored;
  relu.activation = Activation::kReLU;
  relu.activation_param = 0;
  const auto large_weight = torch::randn({16, 256, 3, 3}).set_requires_grad(true);  // its copy: 74 KB
  const std::vector<std::function<at::Tensor()>> products{
      [&] { return ops::convolution(x, weight, {}, pointwise); },
      [&] { return ops::activate_conv(x, weight, {}, pointwise, Activation::kReLU, 0); },
      [&] { return ops::abn_conv(x, norm, weight, {}, pointwise, {}); },
      [&] { return ops::abn_conv(x, norm, weight, {}, pointwise, stored); },
      [&] { return ops::linear(rows, matrix, {}); },
      [&] { return ops::concat_abn_conv({x}, norm, weight, pointwise, {}); },
      [&] { return ops::concat_abn_conv({x}, std::nullopt, weight, pointwise, {}); },
      [&] {
        ops::DenseLayer layer{norm, relu, weight, norm, stored, large_weight, {{1, 1}, {1, 1}, {1, 1}, 1}};
        return ops::dense_block(x, {layer});
      }};
  const int64_t copy = weight.numel() * 2;
  for (size_t i = 0; i < products.size(); ++i) {
    products[i]().sum().backward();  // libraries set themselves up
    memory::Meter meter;
    const at::Tensor out = products[i]();
    meter.forward_done();
    EXPECT_LT(meter.kept_bytes(), copy / 4) << "product " << i;
    out.sum().backward();
  }
}

TEST(Autocast, AForwardPassHoldsTheCopyOfOneLayerAtATime) {
  const amp::AutocastGuard guard(at::kCPU, at::kHalf, {.cache = false});
  constexpr int kLayers = 12;
  Tensors matrices;
  for (int i = 0; i < kLayers; ++i)
    matrices.push_back(torch::randn({256, 256}).mul_(0.05).set_requires_grad(true));
  const auto forward = [&] {
    at::Tensor h = torch::randn({2, 256}).to(at::kHalf);
    for (const auto& matrix : matrices) h = ops::linear(h, matrix, {});
    return h;
  };
  forward();  // libraries set themselves up
  memory::Meter meter;
  const at::Tensor out = forward();
  meter.forward_done();
  // The cast, widened where the processor needs it, and the copies of it in other layouts that a library makes.
  EXPECT_LT(meter.peak_bytes() - meter.base_bytes(), 6 * 256 * 256 * 2) << "of " << kLayers << " copies";
  out.sum().backward();
}

TEST(Autocast, AWeightThatChangesBeforeBackwardIsAnError) {
  const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
  for (const Case& c : cases()) {
    const auto x = torch::randn(c.x), weight = torch::randn(c.weight).set_requires_grad(true),
               bias = torch::randn({c.weight[0]});
    const auto out = c.ours(x, weight, bias);
    {
      const torch::NoGradGuard no_grad;
      at::Tensor(weight).mul_(2);
    }
    EXPECT_THROW(out.sum().backward(), c10::Error) << c.name;
  }
}

TEST(Autocast, DoubleBackwardIsAnErrorAndNotAWrongGradient) {
  const amp::AutocastGuard guard(at::kCPU, at::kBFloat16);
  for (const Case& c : cases()) {
    const auto weight = torch::randn(c.weight).set_requires_grad(true);
    const auto out = c.ours(torch::randn(c.x), weight, torch::randn({c.weight[0]}));
    EXPECT_THROW(torch::autograd::grad({out.sum()}, {weight}, {}, true, /*create_graph=*/true), c10::Error)
        << c.name;
  }
}

TEST(Autocast, ARecomputedSegmentHasTheGradientsOfThePlainOne) {
  for (const Storage& storage : kStorages) {
    Tensors plain;
    for (const bool recomputed : {false, true}) {
      torch::manual_seed(3);
      nn::InPlaceABN layer(12);
      const auto weight = torch::randn({12, 4, 3, 3}).set_requires_grad(true);
      const auto x = torch::randn({2, 8, 7, 6}).set_requires_grad(true);
      const auto segment = [&](const at::Tensor& t) {
        return layer->forward(ops::convolution(t, weight, {}, kPlain));
      };
      at::Tensor out;
      {
        const amp::AutocastGuard guard(at::kCPU, storage.type, storage.options());
        out = recomputed ? memory::recompute(segment, x) : segment(x);
      }
      out.to(at::kFloat).sin().sum().backward();  // outside of the guard
      const Tensors left{x.grad(), weight.grad(), layer->weight.grad(), layer->running_mean, out.detach()};
      if (!recomputed) plain = left;
      for (size_t i = 0; i < left.size(); ++i) EXPECT_TRUE(torch::equal(left[i], plain[i])) << "tensor " << i;
    }
  }
}

}  // namespace
}  // namespace palimpsest::ops::autocast_tests
