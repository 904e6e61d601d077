#include "palimpsest/amp/exponent_histogram.h"

#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/amp/grad_scaler.h"
#include "palimpsest/ops/convolution.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

namespace palimpsest::amp {
namespace {

at::Tensor powers(std::initializer_list<int> exponents) {
  std::vector<float> values;
  for (const int e : exponents) values.push_back(std::ldexp(1.5f, e));
  return torch::tensor(values);
}

TEST(ExponentHistogram, ItsSharesAreThoseOfTheValues) {
  ExponentHistogram h;
  h.add(torch::cat({torch::zeros({2}), powers({-30, -26, -25, -24, -10, 0})}));
  EXPECT_EQ(h.values(), 8);
  EXPECT_EQ(h.count(-26), 1);
  // The largest is below 2: 2^14 brings it below 2^15, and 2^-30 to 2^-16.
  EXPECT_EQ(h.recommended_scale(), 16384);
  const auto s = h.shares();
  EXPECT_EQ(s.zero, 2 / 8.0);
  EXPECT_EQ(s.lost, 3 / 8.0);
  EXPECT_EQ(s.recoverable, 3 / 8.0);
  EXPECT_EQ(s.above, 0);
  h.add(powers({5, 16}));
  h.add(torch::tensor({INFINITY, NAN}));
  h.add(at::Tensor());
  EXPECT_EQ(h.values(), 12);
  EXPECT_EQ(h.not_finite(), 2);
  EXPECT_EQ(h.recommended_scale(), 0.25);
  EXPECT_EQ(h.shares().above, 3 / 12.0);
  EXPECT_EQ(h.shares().recoverable, 0) << "at a quarter even more is lost";
  h.clear();
  EXPECT_EQ(h.values(), 0);
  EXPECT_EQ(h.recommended_scale(), 1);
}

TEST(ExponentHistogram, TheRecommendedScaleKeepsTheLargestBelow65504) {
  for (const float largest : {1e-6f, 0.4999f, 0.5f, 1.0f, 1.9999999f, 3e4f, 6e4f}) {
    ExponentHistogram h;
    h.add(torch::tensor({largest, 1e-9f, 0.0f}));
    const double scale = h.recommended_scale();
    EXPECT_LT(scale * largest, kLargestHalf);
    EXPECT_TRUE(scale == 16777216 || scale * largest >= kLargestHalf / 4) << largest;
  }
}

TEST(ExponentHistogram, DividesByTheScaleThatGradientsWereMultipliedBy) {
  const auto gradients = powers({-30, -20, -3, 2});
  ExponentHistogram plain;
  plain.add(gradients);
  for (const double scale : {1024.0, 0.125, 100.0}) {
    ExponentHistogram scaled;
    scaled.add((gradients * scale), scale);
    EXPECT_EQ(scaled.bars().exponents, plain.bars().exponents) << scale;
    EXPECT_EQ(scaled.bars().shares, plain.bars().shares) << scale;
    ExponentHistogram of_f64;
    of_f64.add((gradients * scale).to(at::kDouble), scale);
    EXPECT_EQ(of_f64.bars().shares, plain.bars().shares) << scale;
  }
}

TEST(ExponentHistogram, IsPrintedAndHandedOutAsBars) {
  ExponentHistogram h;
  h.add(torch::cat({torch::zeros({2}), powers({-25, -24, -24, -22})}));
  const auto bars = h.bars();
  EXPECT_EQ(bars.exponents, (std::vector<double>{-25, -24, -23, -22}));
  EXPECT_EQ(bars.shares, (std::vector<double>{1 / 6.0, 2 / 6.0, 0, 1 / 6.0}));
  const std::string text = h.text();
  EXPECT_NE(text.find("6 gradients: 33.33 % zero, 16.67 % below 2^-24"), std::string::npos) << text;
  EXPECT_NE(text.find("recommended constant scale 16777216, which recovers 16.67 %"), std::string::npos)
      << text;
  EXPECT_NE(text.find("2^-24    33.33 % ##################################################\n"),
            std::string::npos)
      << text;
}

TEST(ExponentHistogram, SeesActivationAndWeightGradientsOfABackwardPass) {
  const ops::ConvolutionOptions pointwise{{1, 1}, {0, 0}, {1, 1}, 1};
  const auto first = torch::ones({4, 3, 1, 1}).set_requires_grad(true),
             second = torch::ones({5, 4, 1, 1}).set_requires_grad(true);
  torch::optim::SGD sgd({first, second}, torch::optim::SGDOptions(0.1));
  for (const double scale : {1.0, 256.0}) {
    sgd.zero_grad();
    GradScaler scaler = GradScaler::constant(scale);
    at::Tensor out;
    {
      const AutocastGuard guard(at::kCPU, at::kHalf, {.cache = false});
      out = ops::convolution(at::relu(ops::convolution(torch::ones({2, 3, 4, 4}), first, {}, pointwise)),
                             second, {}, pointwise);
    }
    const auto loss = scaler.scale((out.to(at::kFloat) * std::ldexp(1.0, -20)).sum());
    ExponentHistogram activations, weights;
    observe_activation_gradients(loss, activations, scale);
    loss.backward();
    scaler.unscale_(sgd);
    weights.add_gradients(sgd);
    // The second product's output has the gradient 2^-20, relu's (which is the first product's) has 5 times
    // that.
    EXPECT_EQ(activations.values(), 160 + 2 * 128);
    EXPECT_EQ(activations.count(-20), 160);
    EXPECT_EQ(activations.count(-18), 256);
    EXPECT_EQ(weights.values(), 12 + 20);
    EXPECT_EQ(weights.count(-13), 12 + 0) << "32 * 5 * 2^-20";
    EXPECT_EQ(weights.count(-14), 20) << "3 * 32 * 2^-20";
  }
}

TEST(ExponentHistogram, AddsAnotherHistogram) {
  ExponentHistogram both, first, second;
  const at::Tensor a = powers({-30, 0, 3}), b = torch::cat({powers({3, 100}), torch::zeros({2})});
  first.add(a);
  second.add(b);
  first.add(second);
  both.add(torch::cat({a, b}));
  EXPECT_EQ(first.values(), 7);
  EXPECT_EQ(first.bars().exponents, both.bars().exponents);
  EXPECT_EQ(first.bars().shares, both.bars().shares);
  EXPECT_EQ(first.shares().zero, both.shares().zero);
}

}  // namespace
}  // namespace palimpsest::amp
