#include "palimpsest/train/loss.h"

#include "palimpsest/memory/meter.h"
#include "palimpsest/ops/upsampled_loss.h"
#include "tests/train/support.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace palimpsest::train {
namespace {

using testing::expect_error;
using testing::kReorderedF64;
using testing::relative_error;

struct Want {
  double loss = 0;
  at::Tensor gradient;  // (N, C, P) f64
};

/// The definitions of loss.h as loops over one pixel at a time. logits (N, C, P) f64, targets (N, P).
Want by_loops(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options) {
  const int64_t n = logits.size(0), c = logits.size(1), p = logits.size(2);
  const at::Tensor x = logits.contiguous(), t = targets.contiguous();
  const auto x_at = [&](int64_t i, int64_t k, int64_t j) {
    return x.const_data_ptr<double>()[(i * c + k) * p + j];
  };
  const auto t_at = [&](int64_t i, int64_t j) { return t.const_data_ptr<int64_t>()[i * p + j]; };
  const auto log_softmax = [&](int64_t i, int64_t k, int64_t j) {
    double sum = 0;
    for (int64_t q = 0; q < c; ++q) sum += std::exp(x_at(i, q, j) - x_at(i, k, j));
    return -std::log(sum);
  };

  std::vector<std::pair<int64_t, int64_t>> selected;
  for (int64_t i = 0; i < n; ++i) {
    std::vector<std::pair<double, int64_t>> ranked;  // (minus loss, pixel): hardest first
    for (int64_t j = 0; j < p; ++j)
      if (t_at(i, j) != options.ignore_id) ranked.emplace_back(log_softmax(i, t_at(i, j), j), j);
    if (options.kind == "bootstrap") {
      std::sort(ranked.begin(), ranked.end());
      ranked.resize(
          static_cast<std::size_t>(std::ceil(options.bootstrap_share * static_cast<double>(ranked.size()))));
      if (options.bootstrap_probability < 1)
        std::erase_if(ranked,
                      [&](const auto& r) { return std::exp(r.first) >= options.bootstrap_probability; });
    }
    for (const auto& [minus_loss, j] : ranked) selected.emplace_back(i, j);
  }
  Want want{0, at::zeros_like(x)};
  const double count = std::max<double>(1, static_cast<double>(selected.size()));
  for (const auto& [i, j] : selected) {
    want.loss -= log_softmax(i, t_at(i, j), j) / count;
    for (int64_t k = 0; k < c; ++k)
      want.gradient.data_ptr<double>()[(i * c + k) * p + j] =
          (std::exp(log_softmax(i, k, j)) - (k == t_at(i, j) ? 1 : 0)) / count;
  }
  return want;
}

at::Tensor some_targets(at::IntArrayRef shape, int64_t classes, double void_share = 0.2) {
  const at::Tensor targets = at::randint(0, classes, shape, at::kLong);
  return targets.masked_fill(at::rand(shape) < void_share, 255);
}

/// Value and gradient (scaled, so that the incoming gradient is seen to count) against the loops.
void expect_as_by_loops(const at::Tensor& values, const at::Tensor& targets, const LossOptions& options) {
  const at::Tensor logits = values.detach().requires_grad_();
  const at::Tensor got = loss(logits, targets, options);
  (got * 3).backward();
  const int64_t n = logits.size(0), c = logits.size(1);
  const Want want = by_loops(values.reshape({n, c, -1}), targets.reshape({n, -1}), options);
  EXPECT_EQ(got.dim(), 0);
  EXPECT_NEAR(got.item<double>(), want.loss, kReorderedF64 * std::max(1.0, std::abs(want.loss)));
  EXPECT_EQ(logits.grad().sizes(), logits.sizes());
  EXPECT_LE(relative_error(logits.grad().reshape({n, c, -1}), 3 * want.gradient), kReorderedF64);
}

std::vector<LossOptions> kinds() {
  LossOptions bootstrap{.kind = "bootstrap"}, easy_dropped{.kind = "bootstrap", .bootstrap_probability = 0.2};
  LossOptions half{.kind = "bootstrap", .bootstrap_share = 0.5};
  return {LossOptions{}, bootstrap, easy_dropped, half};
}

TEST(Loss, ValueAndGradientAreThoseOfPlainLoopsInEveryLayout) {
  at::manual_seed(1);
  for (const auto& options : kinds()) {
    const at::Tensor targets = some_targets({3, 5, 7}, 4);
    const at::Tensor x = at::randn({3, 4, 5, 7}, at::kDouble) * 2;
    expect_as_by_loops(x, targets, options);
    expect_as_by_loops(x.contiguous(at::MemoryFormat::ChannelsLast), targets, options);
    expect_as_by_loops(x.transpose(2, 3).contiguous().transpose(2, 3), targets, options);
    expect_as_by_loops(x, targets.transpose(1, 2).contiguous().transpose(1, 2), options);
    expect_as_by_loops(at::randn({6, 4}, at::kDouble), some_targets({6}, 4), options);
    expect_as_by_loops(at::randn({2, 3, 2, 3, 4}, at::kDouble), some_targets({2, 2, 3, 4}, 3), options);
  }
}

TEST(Loss, LabelSmoothingAndClassWeightsAreThoseOfLibtorchOfTheChosenPixels) {
  at::manual_seed(8);
  for (const double smoothing : {0.0, 0.2})
    for (const bool weighted : {false, true})
      for (LossOptions options : kinds())
        for (const std::vector<int64_t>& shape :
             std::vector<std::vector<int64_t>>{{6, 4}, {3, 4, 5, 7}, {2, 4, 2, 3, 4}}) {
          std::vector<int64_t> of_targets = shape;
          of_targets.erase(of_targets.begin() + 1);
          const at::Tensor targets = some_targets(of_targets, 4);
          const at::Tensor x = at::randn(shape, at::kDouble).requires_grad_(),
                           y = x.detach().clone().requires_grad_();
          const Want chosen =
              by_loops(x.detach().reshape({shape[0], 4, -1}), targets.reshape({shape[0], -1}), options);
          const at::Tensor counts = chosen.gradient.abs().sum(1).gt(0).reshape(of_targets);
          options.label_smoothing = smoothing;
          if (weighted) options.class_weights = {1, 0, 2.5, 0.25};
          const at::Tensor weight = at::tensor(std::vector<double>{1, 0, 2.5, 0.25}, at::kDouble);
          const at::Tensor counted = targets.masked_fill(counts.logical_not(), 255);
          const at::Tensor want =
              at::cross_entropy_loss(y, counted, weighted ? c10::optional<at::Tensor>(weight) : c10::nullopt,
                                     at::Reduction::Mean, 255, smoothing);
          const SummedLoss got = summed_loss(x, targets, options);
          ops::mean_loss(got.sum, got.weight).backward();
          want.backward();
          const at::Tensor valid = counted.masked_select(counts);
          EXPECT_NEAR(got.weight.item<double>(),
                      weighted ? weight.index_select(0, valid).sum().item<double>()
                               : static_cast<double>(valid.numel()),
                      kReorderedF64);
          EXPECT_NEAR(ops::mean_loss(got.sum, got.weight).item<double>(), want.item<double>(), kReorderedF64);
          EXPECT_LE(relative_error(x.grad(), y.grad()), kReorderedF64);
          if (options.kind == "cross_entropy") {
            EXPECT_NEAR(expected_weight(targets, options).item<double>(), got.weight.item<double>(),
                        kReorderedF64);
          }
        }
}

TEST(Loss, WrongSmoothingAndWeightsAreErrors) {
  const auto fails = [](const LossOptions& options, const std::vector<std::string>& parts) {
    expect_error(ErrorKind::kUsage, parts,
                 [&] { loss(at::randn({2, 3}), at::zeros({2}, at::kLong), options); });
  };
  fails({.label_smoothing = 1}, {"label_smoothing", "[0, 1)", "1"});
  fails({.label_smoothing = -0.1}, {"label_smoothing", "-0.1"});
  fails({.class_weights = {1, -2, 1}}, {"class_weights", "-2"});
  fails({.class_weights = {0, 0, 0}}, {"class_weights", "all be 0"});
  fails({.class_weights = {1, 2}}, {"class_weights", "3 classes", "2 numbers"});
}

TEST(Loss, SlabsOfPixelsAndOfImagesLeaveNoSeam) {
  at::manual_seed(2);
  for (const auto& options : kinds()) {
    expect_as_by_loops(at::randn({2, 5, 250, 250}, at::kDouble), some_targets({2, 250, 250}, 5), options);
    expect_as_by_loops(at::randn({150, 6, 20, 20}, at::kDouble), some_targets({150, 20, 20}, 6), options);
  }
}

TEST(Loss, GradientIsTheNumericOne) {
  at::manual_seed(3);
  for (const auto& options : kinds()) {
    const at::Tensor targets = some_targets({2, 3, 3}, 3);
    at::Tensor x = at::randn({2, 3, 3, 3}, at::kDouble).requires_grad_();
    loss(x, targets, options).backward();
    const at::NoGradGuard no_grad;
    at::Tensor numeric = at::zeros_like(x);
    for (int64_t i = 0; i < x.numel(); ++i) {
      at::Tensor moved = x.detach().clone();
      double* value = moved.data_ptr<double>() + i;
      *value += testing::kNumericStep;
      const double above = loss(moved, targets, options).item<double>();
      *value -= 2 * testing::kNumericStep;
      const double below = loss(moved, targets, options).item<double>();
      numeric.data_ptr<double>()[i] = (above - below) / (2 * testing::kNumericStep);
    }
    EXPECT_LE(relative_error(x.grad(), numeric), testing::kNumericGradient.relative_l2) << options.kind;
  }
}

TEST(Loss, SinglePrecisionAgreesWithLibtorch) {
  at::manual_seed(4);
  const at::Tensor x = at::randn({2, 11, 40, 40}).requires_grad_(), y = x.detach().clone().requires_grad_();
  const at::Tensor targets = some_targets({2, 40, 40}, 11);
  const at::Tensor got = loss(x, targets, {});
  const at::Tensor want = at::cross_entropy_loss(y, targets, {}, at::Reduction::Mean, 255);
  got.backward();
  want.backward();
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_LE(relative_error(got, want), testing::kReorderedF32);
  EXPECT_LE(relative_error(x.grad(), y.grad()), testing::kReorderedF32);
}

TEST(Loss, ABatchOfVoidAloneGivesZeroAndAZeroGradient) {
  for (const auto& options : kinds()) {
    const at::Tensor x = at::randn({2, 3, 4, 4}).requires_grad_();
    const at::Tensor value = loss(x, at::full({2, 4, 4}, 255, at::kLong), options);
    value.backward();
    EXPECT_EQ(value.item<double>(), 0);
    EXPECT_EQ(x.grad().abs().max().item<double>(), 0);
  }
}

TEST(Loss, BootstrappingTakesTheHardestQuarterOfEachImagesValidPixels) {
  // Two classes; the logit of the true one is -pixel, so a later pixel is harder. Image 1 has 2 valid pixels
  // only.
  at::Tensor x = at::zeros({2, 2, 8}, at::kDouble);
  x.select(1, 0).copy_(-at::arange(8, at::kDouble));
  x.requires_grad_();
  at::Tensor targets = at::zeros({2, 8}, at::kLong);
  targets[1].narrow(0, 2, 6).fill_(255);
  loss(x, targets, {.kind = "bootstrap"}).backward();
  const at::Tensor touched = x.grad().select(1, 0).ne(0);
  EXPECT_TRUE(touched[0].equal(at::arange(8).ge(6)));  // ceil(8 / 4) = 2
  EXPECT_TRUE(touched[1].equal(at::arange(8).eq(1)));  // ceil(2 / 4) = 1
}

TEST(Loss, HugeLogitsDoNotOverflowAndInfinityShows) {
  at::Tensor x = at::tensor({1e30f, -1e30f}).view({1, 2}).requires_grad_();
  const at::Tensor right = loss(x, at::tensor({int64_t{0}}), {});
  right.backward();
  EXPECT_EQ(right.item<float>(), 0);
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  for (const auto& options : kinds()) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(
        loss(at::tensor({nan, 0.f}).view({1, 2}), at::tensor({int64_t{0}}), options).item<float>()));
  }
}

TEST(Loss, KeepsTheGradientOfTheLogitsAloneAndMakesNoTensorOfTheImagesSize) {
  for (const int64_t scale : {1, 8}) {
    const at::Tensor x = at::randn({2, 64, 32, 32}).requires_grad_();
    const at::Tensor targets = some_targets({2, 32 * scale, 32 * scale}, 64);
    const auto bytes = static_cast<int64_t>(x.nbytes());
    // The workspace of kernels/upsampled_loss.h: a row of the logits, and a bit, per band of 4096 pixels; four
    // numbers per row of the images; ranks of one image.
    const int64_t pixels = targets[0].numel(), bands = 2 * ((pixels + 4095) / 4096);
    const int64_t workspace = bands * 33 * 64 * 4 + 2 * 32 * scale * 32;
    for (const auto& options : kinds()) {
      memory::Meter meter;
      at::Tensor value = loss(x, targets, options);
      meter.forward_done();
      EXPECT_LE(meter.kept_bytes(), bytes + 4096);
      EXPECT_GE(meter.kept_bytes(), bytes);
      EXPECT_LE(meter.peak_bytes() - meter.base_bytes(),
                bytes + workspace + (options.kind == "bootstrap" ? 5 * pixels : 0) + 4096);
      memory::Meter backward;
      value.backward();
      EXPECT_LE(backward.peak_bytes() - backward.base_bytes(), bytes + 4096) << "dx";
      x.mutable_grad() = at::Tensor();
    }
  }
}

TEST(Loss, OfLabelsKeepsNoTensorOfTheLogitsSize) {
  const at::Tensor x = at::randn({2048, 64}).requires_grad_();
  const at::Tensor targets = some_targets({2048}, 64);
  for (const auto& options : kinds()) {
    memory::Meter meter;
    at::Tensor value = loss(x, targets, options);
    meter.forward_done();
    EXPECT_LE(meter.kept_bytes(), 2048 * (4 + 1) + 4096);  // log-sum-exp, mask, the scalar
    EXPECT_GE(meter.kept_bytes(), 2048 * (4 + 1));
  }
}

TEST(Loss, OfCoarseLogitsIsThatOfTheUpsampledOnes) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({2, 5, 6, 7}, at::kDouble), targets = some_targets({2, 48, 50}, 5);
  for (const auto& options : kinds()) {
    const at::Tensor coarse = x.clone().requires_grad_(), upsampled = x.clone().requires_grad_();
    const SummedLoss ours = summed_loss(coarse, targets, options);
    const SummedLoss whole =
        summed_loss(at::upsample_bilinear2d(upsampled, {48, 50}, false), targets, options);
    ours.sum.backward();
    whole.sum.backward();
    EXPECT_EQ(ours.weight.item<double>(), whole.weight.item<double>());
    EXPECT_LE(relative_error(ours.sum, whole.sum), kReorderedF64);
    EXPECT_LE(relative_error(coarse.grad(), upsampled.grad()), kReorderedF64);
  }
}

TEST(Loss, GradientsKeepTheLayoutOfTheLogits) {
  const at::Tensor x = at::randn({2, 3, 4, 4}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  loss(x, at::zeros({2, 4, 4}, at::kLong), {}).backward();
  EXPECT_EQ(x.grad().strides(), x.strides());
}

TEST(Loss, TheSameBytesTwice) {
  at::manual_seed(5);
  const at::Tensor x = at::randn({2, 5, 64, 64}), targets = some_targets({2, 64, 64}, 5);
  for (const auto& options : kinds()) {
    const at::Tensor a = x.clone().requires_grad_(), b = x.clone().requires_grad_();
    const at::Tensor first = loss(a, targets, options), second = loss(b, targets, options);
    first.backward();
    second.backward();
    EXPECT_TRUE(first.equal(second) && a.grad().equal(b.grad()));
  }
}

TEST(Loss, ASecondDerivativeIsRefused) {
  const at::Tensor x = at::randn({2, 3}).requires_grad_();
  const at::Tensor value = loss(x, at::zeros({2}, at::kLong), {});
  EXPECT_THROW(torch::autograd::grad({value}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true),
               c10::Error);
}

TEST(Loss, ALabelThatIsNoClassIsAnErrorThatNamesIt) {
  const at::Tensor x = at::randn({1, 11, 2, 2});
  for (const int64_t label : {int64_t{11}, int64_t{-1}, int64_t{254}}) {
    at::Tensor targets = at::zeros({1, 2, 2}, at::kLong);
    targets[0][1][0] = label;
    expect_error(ErrorKind::kData, {"label " + std::to_string(label), "0 to 10", "255"},
                 [&] { loss(x, targets, {}); });
  }
}

TEST(Loss, ShapesAndTypesThatDoNotFitAreRefused) {
  EXPECT_THROW(loss(at::randn({1, 3, 2, 2}), at::zeros({1, 1, 3}, at::kLong), {}), c10::Error);
  EXPECT_THROW(loss(at::randn({1, 3, 2, 2}), at::zeros({1, 2, 2}), {}), c10::Error);
  EXPECT_THROW(loss(at::randn({3}), at::zeros({}, at::kLong), {}), c10::Error);
}

TEST(Loss, FeaturesInPlaceOfLogitsAreAnErrorThatNamesTheClassifier) {
  try {
    loss(at::randn({2, 8, 3, 3}), at::zeros({2}, at::kLong), {});
    FAIL() << "features were accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("a model of 0 classes has none"), std::string::npos)
        << error.what();
  }
}

TEST(Loss, UnknownKindsAndValuesOutOfRangeAreErrors) {
  const at::Tensor x = at::randn({1, 3}), t = at::zeros({1}, at::kLong);
  expect_error(ErrorKind::kUsage, {"loss 'bootstrp'", "did you mean 'bootstrap'"},
               [&] { loss(x, t, {.kind = "bootstrp"}); });
  expect_error(ErrorKind::kUsage, {"bootstrap_share", "0"}, [&] { loss(x, t, {.bootstrap_share = 0}); });
  expect_error(ErrorKind::kUsage, {"bootstrap_probability", "1.5"},
               [&] { loss(x, t, {.bootstrap_probability = 1.5}); });
}

}  // namespace
}  // namespace palimpsest::train
