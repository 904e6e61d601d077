#include "tests/kernels/upsampled_loss_case.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace palimpsest::testing {
namespace {

template <class T>
void expect_reference(const UpsampledInputs<T>& inputs, const CrossEntropyRules& rules, double tolerance) {
  std::vector<T> gradient(inputs.x.size(), T(7)), truth(inputs.x.size());
  const CrossEntropySums sums = kernels::cpu::upsampled_cross_entropy(
      inputs.problem, inputs.x.data(), inputs.targets(), rules, gradient.data());
  const CrossEntropySums expected = kernels::reference::upsampled_cross_entropy(
      inputs.problem, inputs.x.data(), inputs.targets(), rules, truth.data());
  EXPECT_EQ(sums.first_wrong, -1);
  EXPECT_EQ(sums.count, expected.count);
  EXPECT_NEAR(sums.weight, expected.weight, 1e-12 * (1 + expected.weight));
  EXPECT_NEAR(sums.loss, expected.loss, tolerance * (1 + std::abs(expected.loss)));
  EXPECT_LE(largest_difference(gradient, truth), tolerance);
  // On the heap, where a sanitizer sees an access behind its end.
  const auto bytes = static_cast<std::size_t>(
      kernels::cpu::upsampled_cross_entropy_workspace_bytes(inputs.problem, rules, /*has_gradient=*/false));
  const std::unique_ptr<std::byte[]> workspace(new std::byte[bytes]);
  const CrossEntropySums alone = kernels::cpu::upsampled_cross_entropy(
      inputs.problem, inputs.x.data(), inputs.targets(), rules, nullptr, workspace.get());
  EXPECT_EQ(alone.loss, sums.loss);
  EXPECT_EQ(alone.count, sums.count);
  CrossEntropyRules in_twos = rules;
  in_twos.ranked_images = 2;
  std::vector<T> same(inputs.x.size());
  EXPECT_EQ(kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(), inputs.targets(), in_twos,
                                                  same.data())
                .loss,
            sums.loss);
  EXPECT_EQ(same, gradient);
}

template <class T>
class UpsampledLoss : public ::testing::Test {
 public:
  static constexpr double kTolerance = std::is_same_v<T, double> ? 1e-13 : 1e-6;

  /// Calls test(inputs) for all cases, layouts and rules for corners.
  template <class Test>
  static void on_all(const Test& test) {
    for (const UpsampledCase& c : upsampled_cases())
      for (const Layout layout : kLayouts)
        for (const bool align_corners : {false, true}) {
          SCOPED_TRACE(::testing::PrintToString(c) + (align_corners ? " corners" : "") +
                       (layout == Layout::kNCHW ? " NCHW" : " channels-last"));
          test(UpsampledInputs<T>(c, layout, align_corners, 4));
        }
  }
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(UpsampledLoss, Types);

TYPED_TEST(UpsampledLoss, IsTheReference) {
  this->on_all([&](const auto& inputs) { expect_reference(inputs, {}, this->kTolerance); });
}

TYPED_TEST(UpsampledLoss, IsTheReferenceWithWeightsAndSmoothing) {
  this->on_all([&](const auto& inputs) {
    expect_reference(inputs, {.weight = inputs.weight.data(), .label_smoothing = 0.1}, this->kTolerance);
    expect_reference(inputs, {.label_smoothing = 1}, this->kTolerance);
  });
}

TYPED_TEST(UpsampledLoss, IsTheReferenceWithBootstrapping) {
  this->on_all([&](const auto& inputs) {
    for (const auto& [share, probability] : {std::pair{0.25, 1.0}, {0.01, 1.0}, {1.0, 0.2}, {0.5, 0.1}})
      expect_reference(inputs, {.share = share, .probability = probability}, this->kTolerance);
  });
}

TYPED_TEST(UpsampledLoss, OfEquallyHardPixelsTheFirstCount) {
  UpsampledInputs<TypeParam> inputs({2, 5, {4, 4}, {16, 16}}, Layout::kNCHW, false, 0);  // all logits are 0
  expect_reference(inputs, {.share = 0.3}, this->kTolerance);
}

TYPED_TEST(UpsampledLoss, HoldsWhereLogitsAreLarge) {
  // From 43.5 (f64: 354) on some probabilities are so small that they are computed as 0.
  for (const double largest : {30., 60., 400., 1e3, 1e30})
    for (const int64_t classes : {5, 19}) {
      const UpsampledInputs<TypeParam> inputs({1, classes, {4, 5}, {32, 40}}, Layout::kChannelsLast, false,
                                              largest);
      expect_reference(inputs, {}, std::is_same_v<TypeParam, double> ? 1e-11 : 2e-5 * largest / 30);
    }
}

TYPED_TEST(UpsampledLoss, SmallProbabilitiesAreExactUntilTheyAreZero) {
  // At scale 1 the gradient of a class that is not meant is its probability.
  constexpr bool kDouble = std::is_same_v<TypeParam, double>;
  for (const int64_t classes : {2, 20})  // fewer than 9 classes have a kernel of their own
    for (const double gap : {1., 20., 60., 86.9, kDouble ? 700. : 87.1, kDouble ? 708.1 : 95.}) {
      SCOPED_TRACE(gap);
      UpsampledInputs<TypeParam> inputs({1, classes, {1, 4}, {1, 4}}, Layout::kChannelsLast, false, 0);
      for (std::size_t i = 1; i < inputs.x.size(); ++i)
        inputs.x[i] = static_cast<TypeParam>(i % static_cast<std::size_t>(classes) == 0 ? 0 : -gap);
      std::fill(inputs.ids.begin(), inputs.ids.end(), 0);
      std::vector<TypeParam> gradient(inputs.x.size());
      kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(), inputs.targets(), {},
                                            gradient.data());
      const double below = static_cast<TypeParam>(gap),
                   others = static_cast<double>(classes - 1) * std::exp(-below);
      const double want = std::exp(-below) / (1 + others);
      if (gap > 708 || (!kDouble && gap > 87)) {
        EXPECT_EQ(gradient[1], 0);
      } else {
        EXPECT_NEAR(gradient[1] / want, 1, kDouble ? 1e-14 : 1e-6);
      }
    }
}

TYPED_TEST(UpsampledLoss, ANumberThatIsNoneHidesBehindNoLargeLogit) {
  for (const int64_t classes : {3, 20}) {
    UpsampledInputs<TypeParam> inputs({1, classes, {1, 2}, {1, 2}}, Layout::kChannelsLast, false, 0);
    std::fill(inputs.ids.begin(), inputs.ids.end(), 0);
    inputs.x[0] = 1000;
    inputs.x[1] = static_cast<TypeParam>(NAN);
    inputs.x[2] = 1;
    std::vector<TypeParam> gradient(inputs.x.size());
    const auto sums = kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(), inputs.targets(),
                                                            {}, gradient.data());
    EXPECT_TRUE(std::isnan(sums.loss));
    EXPECT_TRUE(std::isnan(gradient[0]));
  }
}

TYPED_TEST(UpsampledLoss, ANumberThatIsNoneReachesTheLossAndTheGradient) {
  for (const double bad : {static_cast<double>(NAN), HUGE_VAL}) {
    for (const CrossEntropyRules& rules : {CrossEntropyRules{}, CrossEntropyRules{.share = 0.25}}) {
      UpsampledInputs<TypeParam> inputs({1, 5, {3, 3}, {9, 9}}, Layout::kNCHW, false, 1);
      inputs.x[2] = static_cast<TypeParam>(bad);
      std::fill(inputs.ids.begin(), inputs.ids.end(), 0);
      std::vector<TypeParam> gradient(inputs.x.size());
      const auto sums = kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(),
                                                              inputs.targets(), rules, gradient.data());
      EXPECT_FALSE(std::isfinite(sums.loss));
      EXPECT_TRUE(std::any_of(gradient.begin(), gradient.end(), [](TypeParam v) { return std::isnan(v); }));
    }
  }
}

TYPED_TEST(UpsampledLoss, InfinityDoesNotHideFromBootstrapping) {
  for (const double share : {1.0, 0.5, 0.01})
    for (const double probability : {1.0, 0.9}) {
      UpsampledInputs<TypeParam> inputs({2, 12, {4, 4}, {16, 16}}, Layout::kNCHW, false, 1);
      for (int i = 0; i < 12 * 16; ++i)
        inputs.x[static_cast<std::size_t>(i)] = static_cast<TypeParam>(HUGE_VAL);
      std::vector<TypeParam> gradient(inputs.x.size());
      const auto sums = kernels::cpu::upsampled_cross_entropy(
          inputs.problem, inputs.x.data(), inputs.targets(), {.share = share, .probability = probability},
          gradient.data());
      EXPECT_FALSE(std::isfinite(sums.loss)) << share << " " << probability;
      EXPECT_TRUE(std::isnan(gradient[0])) << share << " " << probability;
    }
}

TYPED_TEST(UpsampledLoss, AClassThatCannotBeIsNoNaN) {
  for (const int64_t classes : {5, 12, 40}) {
    for (const Pair2 out : {Pair2{4, 4}, Pair2{8, 8}}) {
      UpsampledInputs<TypeParam> inputs({1, classes, {4, 4}, out}, Layout::kChannelsLast, false, 1);
      for (std::size_t i = 3; i < inputs.x.size(); i += static_cast<std::size_t>(classes))
        inputs.x[i] = static_cast<TypeParam>(-HUGE_VAL);
      for (int64_t& id : inputs.ids) id = id == 3 ? 2 : id;
      for (const CrossEntropyRules& rules : {CrossEntropyRules{}, CrossEntropyRules{.share = 0.3}})
        expect_reference(inputs, rules, this->kTolerance);
      std::vector<int64_t> ids(inputs.ids.size());
      kernels::cpu::upsampled_argmax(inputs.problem, inputs.x.data(), false, ids.data());
      EXPECT_EQ(std::count(ids.begin(), ids.end(), 3), 0);
    }
  }
}

TYPED_TEST(UpsampledLoss, APixelWithoutAPossibleClassIsNaN) {
  for (const int64_t classes : {2, 5, 12, 16, 21, 24, 40}) {
    UpsampledInputs<TypeParam> inputs({1, classes, {4, 4}, {4, 4}}, Layout::kChannelsLast, false, 0);
    for (int64_t c = 0; c < classes; ++c)
      inputs.x[static_cast<std::size_t>(classes + c)] = static_cast<TypeParam>(-HUGE_VAL);
    std::fill(inputs.ids.begin(), inputs.ids.end(), 1);
    std::vector<TypeParam> gradient(inputs.x.size());
    const auto sums = kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(), inputs.targets(),
                                                            {}, gradient.data());
    EXPECT_TRUE(std::isnan(sums.loss)) << classes;
    for (int64_t c = 0; c < classes; ++c)
      EXPECT_TRUE(std::isnan(gradient[static_cast<std::size_t>(classes + c)])) << c << " of " << classes;
  }
}

TYPED_TEST(UpsampledLoss, ClassesThatAreAllMaskedByTheLowestNumberAreTheReference) {
  for (const int64_t classes : {2, 5, 12, 16, 21, 24, 40}) {
    UpsampledInputs<TypeParam> inputs({1, classes, {4, 4}, {4, 4}}, Layout::kChannelsLast, false, 0);
    for (int64_t c = 0; c < classes; ++c)  // the last class but one is the largest
      inputs.x[static_cast<std::size_t>(classes + c)] =
          std::numeric_limits<TypeParam>::lowest() * static_cast<TypeParam>(c == classes - 2 ? 0.5 : 1);
    for (const CrossEntropyRules& rules : {CrossEntropyRules{}, CrossEntropyRules{.share = 0.3}})
      expect_reference(inputs, rules, this->kTolerance);
    std::vector<int64_t> ids(inputs.ids.size());
    kernels::cpu::upsampled_argmax(inputs.problem, inputs.x.data(), false, ids.data());
    EXPECT_EQ(ids[1], classes - 2);
  }
}

TYPED_TEST(UpsampledLoss, ANeighbourOfNoWeightIsNotRead) {
  UpsampledInputs<TypeParam> inputs({1, 4, {4, 4}, {4, 4}}, Layout::kNCHW, false, 0);
  for (std::size_t c = 0; c < 4; ++c) inputs.x[c * 16 + 5] = static_cast<TypeParam>(NAN);
  std::fill(inputs.ids.begin(), inputs.ids.end(), 0);
  const auto sums = kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(), inputs.targets(),
                                                          {.share = 1, .probability = 0.9}, nullptr);
  EXPECT_EQ(sums.count, 16);
}

TYPED_TEST(UpsampledLoss, WithoutPixelsIsZero) {
  UpsampledInputs<TypeParam> inputs({2, 3, {2, 2}, {8, 8}}, Layout::kNCHW, false, 1);
  std::fill(inputs.ids.begin(), inputs.ids.end(), 255);
  for (const CrossEntropyRules& rules : {CrossEntropyRules{}, CrossEntropyRules{.share = 0.25}}) {
    std::vector<TypeParam> gradient(inputs.x.size(), TypeParam(1));
    const auto sums = kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(), inputs.targets(),
                                                            rules, gradient.data());
    EXPECT_EQ(sums.loss, 0);
    EXPECT_EQ(sums.count, 0);
    EXPECT_EQ(gradient, std::vector<TypeParam>(inputs.x.size()));
  }
}

TYPED_TEST(UpsampledLoss, ImagesThatAreRankedInPartsAreTheReference) {
  UpsampledInputs<TypeParam> inputs({2, 3, {16, 16}, {160, 256}}, Layout::kNCHW, false, 4);
  for (const double share : {0.25, 0.9, 1e-5})
    expect_reference(inputs, {.share = share, .probability = 0.8}, this->kTolerance);
  // All pixels are as hard: the first ones count. The reference adds 24,576 equal numbers one by one.
  std::fill(inputs.x.begin(), inputs.x.end(), TypeParam(0));
  expect_reference(inputs, {.share = 0.3}, 10 * this->kTolerance);
}

TYPED_TEST(UpsampledLoss, NamesTheFirstWrongTarget) {
  UpsampledInputs<TypeParam> inputs({2, 3, {2, 2}, {8, 8}}, Layout::kNCHW, false, 1);
  for (const int64_t wrong : {int64_t{3}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    for (const auto& [first, second] : {std::pair{77, 100}, {50, 100}, {9, 60}}) {  // images of 64 pixels
      auto bad = inputs;
      bad.ids[static_cast<std::size_t>(first)] = bad.ids[static_cast<std::size_t>(second)] = wrong;
      for (const CrossEntropyRules& rules : {CrossEntropyRules{}, CrossEntropyRules{.share = 0.25}})
        EXPECT_EQ(
            kernels::cpu::upsampled_cross_entropy(bad.problem, bad.x.data(), bad.targets(), rules, nullptr)
                .first_wrong,
            first);
    }
  }
}

TYPED_TEST(UpsampledLoss, TakesTargetsOfOneByte) {
  const UpsampledInputs<TypeParam> inputs({2, 19, {4, 6}, {32, 48}}, Layout::kNCHW, false, 3);
  const std::vector<uint8_t> bytes(inputs.ids.begin(), inputs.ids.end());
  std::vector<TypeParam> a(inputs.x.size()), b(inputs.x.size());
  const auto wide = kernels::cpu::upsampled_cross_entropy(inputs.problem, inputs.x.data(), inputs.targets(),
                                                          {.share = 0.25}, a.data());
  const auto narrow = kernels::cpu::upsampled_cross_entropy(
      inputs.problem, inputs.x.data(), {bytes.data(), true, 255}, {.share = 0.25}, b.data());
  EXPECT_EQ(wide.loss, narrow.loss);
  EXPECT_EQ(a, b);
}

TYPED_TEST(UpsampledLoss, TheNumberOfThreadsDoesNotChangeAByte) {
  const int before = omp_get_max_threads();
  for (const Layout layout : kLayouts) {
    const UpsampledInputs<TypeParam> inputs({2, 19, {40, 40}, {200, 210}}, layout, false, 3);
    for (const double share : {1.0, 0.25}) {
      std::vector<TypeParam> first;
      double loss = 0;
      for (const int threads : {1, 2, 3, 7}) {
        omp_set_num_threads(threads);
        std::vector<TypeParam> gradient(inputs.x.size());
        const auto sums = kernels::cpu::upsampled_cross_entropy(
            inputs.problem, inputs.x.data(), inputs.targets(), {.share = share}, gradient.data());
        if (first.empty()) {
          first = gradient;
          loss = sums.loss;
        }
        EXPECT_EQ(first, gradient);
        EXPECT_EQ(loss, sums.loss);
      }
    }
  }
  omp_set_num_threads(before);
}

TYPED_TEST(UpsampledLoss, ArgmaxIsTheReference) {
  this->on_all([&](const auto& inputs) {
    std::vector<int64_t> ids(inputs.ids.size()), truth(inputs.ids.size());
    kernels::cpu::upsampled_argmax(inputs.problem, inputs.x.data(), false, ids.data());
    kernels::reference::upsampled_argmax(inputs.problem, inputs.x.data(), false, truth.data());
    int64_t others = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) others += ids[i] != truth[i];
    EXPECT_LE(others, 1) << "two logits that f32 rounds to one";
    std::vector<uint8_t> bytes(ids.size());
    if (inputs.problem.c > 255) return;
    kernels::cpu::upsampled_argmax(inputs.problem, inputs.x.data(), true, bytes.data());
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), bytes.begin()));
  });
}

TYPED_TEST(UpsampledLoss, ArgmaxAtScaleOneTakesTheFirstMaximumAndNaN) {
  UpsampledInputs<TypeParam> inputs({1, 40, {4, 4}, {4, 4}}, Layout::kChannelsLast, false, 1);
  for (std::size_t i = 0; i < inputs.x.size(); ++i) inputs.x[i] = static_cast<TypeParam>(i % 40 % 7);
  inputs.x[40 + 33] = inputs.x[40 + 35] = static_cast<TypeParam>(NAN);
  std::vector<int64_t> ids(16);
  kernels::cpu::upsampled_argmax(inputs.problem, inputs.x.data(), false, ids.data());
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], i == 1 ? 33 : 6) << i;
}

}  // namespace
}  // namespace palimpsest::testing
