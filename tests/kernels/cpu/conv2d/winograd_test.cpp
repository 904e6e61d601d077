#include "palimpsest/kernels/cpu/conv2d/winograd.h"

#include "palimpsest/kernels/cpu/conv2d/winograd_tiles.h"
#include "tests/kernels/cpu/conv2d/conv2d_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

// 3x3 convolutions with 4/9 of the multiplications: all three passes.
namespace palimpsest::testing {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

constexpr uint64_t kWinogradSeed = 31;

Conv2dProblem windows(int64_t n, int64_t c_in, int64_t c_out, Pair2 in, Pair2 padding = {1, 1},
                      Pair2 dilation = {1, 1}) {
  return conv2d_problem(n, c_in, c_out, 1, in, {3, 3}, {1, 1}, padding, dilation);
}

GuardedFloats computed(const Conv2dProblem& problem, Conv2dPass pass, const Conv2dTensors& t) {
  using namespace kernels::cpu::conv2d;
  GuardedFloats result(t.result_size(pass), std::numeric_limits<float>::quiet_NaN());
  switch (pass) {
    case Conv2dPass::kForward:
      winograd_forward(problem, t.x.data(), t.w.data(), result.data());
      break;
    case Conv2dPass::kBackwardInput:
      winograd_backward_input(problem, t.dy.data(), t.w.data(), problem.relu_x ? t.x.data() : nullptr,
                              result.data());
      break;
    case Conv2dPass::kBackwardWeight:
      winograd_backward_weight(problem, t.x.data(), t.dy.data(), result.data());
      break;
  }
  EXPECT_TRUE(result.guards_hold()) << problem;
  return result;
}

/// With and without the ReLU of x.
void expect_equals_reference(Conv2dProblem problem) {
  ASSERT_TRUE(kernels::cpu::conv2d::fits_winograd(problem)) << problem;
  for (const bool relu_x : {false, true}) {
    problem.relu_x = relu_x;
    const Conv2dTensors t(problem, kWinogradSeed);
    for (const Conv2dPass pass : kConv2dPasses) {
      const GuardedFloats got = computed(problem, pass, t), want = conv2d_reference(problem, pass, t);
      EXPECT_TRUE(close(got.span(), want.span(), tolerance(DType::f32), kWinogradSeed))
          << problem << ", pass " << static_cast<int>(pass) << (relu_x ? ", ReLU" : "");
    }
  }
}

TEST(Winograd, EqualsTheReferenceForImagesOfWholeAndPartialTiles) {
  for (int64_t height = 1; height <= 5; ++height)
    for (int64_t width = 1; width <= 9; ++width) expect_equals_reference(windows(2, 16, 32, {height, width}));
}

TEST(Winograd, EqualsTheReferenceForChannelsAroundTiles) {
  for (const int64_t c_in : {16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 72, 128, 144})
    for (const int64_t c_out : {16, 23, 32, 40, 47, 64, 65, 72, 112})
      expect_equals_reference(windows(1, c_in, c_out, {5, 6}));
}

TEST(Winograd, EqualsTheReferenceForGroups) {
  for (const int64_t group_in : {16, 24, 40, 64, 130, 272})
    for (const int64_t group_out : {16, 24, 33, 80})
      for (const int64_t groups : {2, 3, 5, 12})
        expect_equals_reference(
            conv2d_problem(1, groups * group_in, groups * group_out, groups, {4, 5}, {3, 3}, {1, 1}, {1, 1}));
  expect_equals_reference(conv2d_problem(3, 216, 216, 9, {28, 28}, {3, 3}, {1, 1}, {2, 2}, {2, 2}));
}

TEST(Winograd, EqualsTheReferenceForSumsInSeveralParts) {
  for (const int64_t deep : {240, 255, 256, 257, 272, 513, 528}) {
    expect_equals_reference(windows(1, deep, 32, {4, 3}));
    expect_equals_reference(windows(1, 32, deep, {4, 3}));
  }
}

TEST(Winograd, EqualsTheReferenceForEveryPaddingAndDilation) {
  for (const Pair2 padding : {Pair2{0, 0}, {1, 1}, {2, 0}, {0, 3}, {5, 5}, {9, 8}})
    for (const Pair2 dilation : {Pair2{1, 1}, {2, 2}, {1, 3}, {4, 2}, {12, 12}})
      if (const auto problem = windows(2, 16, 16, {9, 10}, padding, dilation);
          problem.out.h > 0 && problem.out.w > 0)
        expect_equals_reference(problem);
}

TEST(Winograd, EqualsTheReferenceInManyTasks) {
  expect_equals_reference(windows(2, 32, 48, {71, 67}));                                    // of tiles
  expect_equals_reference(windows(1, 528, 528, {3, 3}));                                    // of weights
  expect_equals_reference(conv2d_problem(1, 48, 3000, 3, {3, 2}, {3, 3}, {1, 1}, {1, 1}));  // of wide groups
  expect_equals_reference(conv2d_problem(1, 900, 900, 3, {3, 3}, {3, 3}, {1, 1}, {1, 1}));  // of groups
  expect_equals_reference(
      conv2d_problem(2, 32, 32, 2, {71, 67}, {3, 3}, {1, 1}, {1, 1}));  // of narrow groups
}

// An error here would only cost time: the results do not show it.
TEST(Winograd, PrefetchesTheRowsThatNoTileBeforeRead) {
  using namespace kernels::cpu;
  using conv2d::Range;
  constexpr int64_t kChannels = 16, kRow = 6 * kChannels * sizeof(float);
  const std::vector<float> values(1);  // whose address is only compared
  const conv2d::Images<float> images(values.data(), {6, 6}, kChannels);
  const auto rows = [&](Range next, int64_t padding, Pair2 dilation = {1, 1}, int64_t products = 1000) {
    const conv2d::Tiles tiles(2, {6, 6}, dilation);
    Prefetch all = conv2d::prefetch_input(images, tiles, next, dilation, padding, products, /*steps=*/1);
    const char nothing = 0;
    Range bytes{0, 0};
    for (ReadAhead share = all.next(&nothing); share.from != &nothing; share = all.next(&nothing)) {
      const int64_t at = static_cast<const char*>(share.from) - reinterpret_cast<const char*>(values.data());
      if (bytes.end == 0) bytes.begin = at;
      bytes.end = at + share.step;
    }
    EXPECT_EQ(bytes.begin % kRow, 0);
    EXPECT_EQ(bytes.end % kRow, 0);
    return std::pair{bytes.begin / kRow, bytes.end / kRow};
  };
  using Rows = std::pair<int64_t, int64_t>;
  EXPECT_EQ(rows({3, 6}, 1), Rows(3, 5));          // a row of tiles: 2 rows of pixels
  EXPECT_EQ(rows({4, 6}, 1), Rows(0, 0));          // the rest of a row of tiles
  EXPECT_EQ(rows({6, 9}, 1), Rows(5, 6));          // the last row of tiles of an image
  EXPECT_EQ(rows({9, 12}, 1), Rows(6, 9));         // the first one of the next image
  EXPECT_EQ(rows({3, 6}, 0), Rows(4, 6));          // no padding
  EXPECT_EQ(rows({1, 4}, 1), Rows(3, 5));          // begins within a row of tiles
  EXPECT_EQ(rows({3, 6}, 1, {2, 2}), Rows(0, 0));  // tiles that skip rows
  EXPECT_EQ(rows({3, 6}, 1, {1, 1}, 0), Rows(0, 0));
}

TEST(Winograd, HasTheSameBytesForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  for (const auto& problem :
       {windows(3, 64, 80, {35, 31}), conv2d_problem(2, 120, 168, 3, {35, 31}, {3, 3}, {1, 1}, {1, 1})}) {
    const Conv2dTensors t(problem, kWinogradSeed);
    for (const Conv2dPass pass : kConv2dPasses) {
      omp_set_num_threads(1);
      const GuardedFloats one = computed(problem, pass, t);
      for (const int threads : {2, 3, 5}) {
        omp_set_num_threads(threads);
        const GuardedFloats some = computed(problem, pass, t);
        EXPECT_TRUE(same_bytes(some.span(), one.span())) << problem << ", " << threads << " threads";
      }
    }
  }
  omp_set_num_threads(before);
}

TEST(Winograd, NotANumberReachesTheWindowsThatReadItAlone) {
  const Conv2dProblem problem = windows(1, 16, 16, {7, 8});
  for (const Conv2dPass pass : {Conv2dPass::kForward, Conv2dPass::kBackwardInput})
    for (int64_t place = 0; place < 56; ++place) {
      Conv2dTensors t(problem, kWinogradSeed);
      (pass == Conv2dPass::kForward ? t.x : t.dy).data()[place * 16 + 5] =
          std::numeric_limits<float>::quiet_NaN();
      const GuardedFloats got = computed(problem, pass, t);
      for (int64_t p = 0; p < 56; ++p) {
        const bool reads = std::abs(p / 8 - place / 8) <= 1 && std::abs(p % 8 - place % 8) <= 1;
        EXPECT_EQ(std::isnan(got.data()[p * 16 + 3]), reads) << place << " in " << p;
      }
    }
}

TEST(Winograd, TheErrorIsThatOfAPlainSum) {
  // The limit is the error of a sum of f32 products, added one after the other.
  const Conv2dProblem problem = windows(1, 64, 64, {24, 24});
  const Conv2dTensors t(problem, kWinogradSeed);
  const GuardedFloats got = computed(problem, Conv2dPass::kForward, t),
                      want = conv2d_reference(problem, Conv2dPass::kForward, t);
  double ours = 0, plain = 0;
  for (int64_t oh = 0; oh < 24; ++oh)
    for (int64_t ow = 0; ow < 24; ++ow)
      for (int64_t o = 0; o < 64; ++o) {
        float sum = 0;
        for (int64_t k = 0; k < 9; ++k) {
          const int64_t ih = oh + k / 3 - 1, iw = ow + k % 3 - 1;
          if (ih < 0 || ih >= 24 || iw < 0 || iw >= 24) continue;
          for (int64_t i = 0; i < 64; ++i)
            sum += t.x.data()[(ih * 24 + iw) * 64 + i] * t.w.data()[(o * 9 + k) * 64 + i];
        }
        const int64_t at = (oh * 24 + ow) * 64 + o;
        ours = std::max(ours, std::abs(double{got.data()[at]} - want.data()[at]));
        plain = std::max(plain, std::abs(double{sum} - want.data()[at]));
      }
  EXPECT_LE(ours, plain);
}

TEST(WinogradFits, TakesThreeByThreeWindowsOfStrideOne) {
  using kernels::cpu::conv2d::fits_winograd;
  EXPECT_TRUE(fits_winograd(windows(1, 16, 32, {3, 3})));
  EXPECT_TRUE(fits_winograd(conv2d_problem(1, 32, 48, 2, {9, 9}, {3, 3}, {1, 1}, {1, 1})));
  EXPECT_FALSE(fits_winograd(windows(1, 15, 32, {3, 3})));
  EXPECT_TRUE(fits_winograd(windows(1, 16384, 16, {3, 3})));
  EXPECT_FALSE(fits_winograd(windows(1, 16385, 16, {3, 3})));
  EXPECT_FALSE(fits_winograd(windows(1, 16, 16385, {3, 3})));
  EXPECT_FALSE(fits_winograd(windows(1, 16, 15, {3, 3})));
  EXPECT_FALSE(fits_winograd(conv2d_problem(1, 16, 16, 1, {9, 9}, {3, 3}, {2, 1}, {1, 1})));
  EXPECT_FALSE(fits_winograd(conv2d_problem(1, 16, 16, 1, {9, 9}, {3, 1}, {1, 1}, {1, 1})));
  EXPECT_FALSE(fits_winograd(conv2d_problem(1, 32, 32, 4, {9, 9}, {3, 3}, {1, 1}, {1, 1})));
}

TEST(WinogradFits, IsTakenForManyPixels) {
  for (const Conv2dPass pass : kConv2dPasses) {
    Conv2dProblem problem = windows(8, 64, 64, {28, 28});
    problem.relu_x = true;
    EXPECT_TRUE(kernels::cpu::has_conv2d(problem, pass));
    problem = conv2d_problem(8, 72, 72, 3, {28, 28}, {3, 3}, {1, 1}, {1, 1});
    problem.relu_x = true;
    EXPECT_TRUE(kernels::cpu::has_conv2d(problem, pass));
  }
  EXPECT_TRUE(kernels::cpu::has_winograd(windows(8, 64, 64, {28, 28})));
  EXPECT_FALSE(kernels::cpu::has_winograd(windows(1, 512, 512, {7, 7})));
  EXPECT_FALSE(kernels::cpu::has_conv2d(windows(1, 512, 512, {7, 7}), Conv2dPass::kForward));
}

}  // namespace
}  // namespace palimpsest::testing
