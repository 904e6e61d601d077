#include "palimpsest/kernels/cpu/simd/stores.h"
#include "tests/kernels/cpu/conv2d/conv2d_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <span>
#include <vector>

// 1x1 convolutions: the forward pass and the gradient of the input.
namespace palimpsest::testing {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

constexpr uint64_t kPointwiseSeed = 23;

constexpr std::size_t kLineValues = 16;
constexpr float kGuardValue = 12345;

struct alignas(64) Line {
  float values[kLineValues];

  static Line of(float value) {
    Line line;
    std::fill(std::begin(line.values), std::end(line.values), value);
    return line;
  }
};

void write(const Conv2dProblem& problem, Conv2dPass pass, const Conv2dTensors& t, float* result) {
  if (pass == Conv2dPass::kForward)
    kernels::cpu::conv2d_forward(problem, t.x.data(), t.w.data(), result);
  else
    kernels::cpu::conv2d_backward_input(problem, t.dy.data(), t.w.data(),
                                        problem.relu_x ? t.x.data() : nullptr, result);
}

GuardedFloats computed(const Conv2dProblem& problem, Conv2dPass pass, const Conv2dTensors& t) {
  GuardedFloats result(t.result_size(pass), std::numeric_limits<float>::quiet_NaN());
  write(problem, pass, t, result.data());
  EXPECT_TRUE(result.guards_hold()) << problem;
  return result;
}

class Pointwise : public ::testing::TestWithParam<Conv2dPass> {
 protected:
  /// With and without the ReLU of x.
  static void expect_equals_reference(Conv2dProblem problem) {
    for (const bool relu_x : {false, true}) {
      problem.relu_x = relu_x;
      ASSERT_TRUE(kernels::cpu::has_conv2d(problem, GetParam())) << problem;
      const Conv2dTensors t(problem, kPointwiseSeed);
      const GuardedFloats got = computed(problem, GetParam(), t),
                          want = conv2d_reference(problem, GetParam(), t);
      EXPECT_TRUE(close(got.span(), want.span(), tolerance(DType::f32), kPointwiseSeed))
          << problem << (relu_x ? ", ReLU" : "");
    }
  }
};

TEST_P(Pointwise, EqualsTheReferenceForChannelsAroundTiles) {
  for (const int64_t c_in : {16, 17, 31, 33, 64, 65})
    for (const int64_t c_out : {16, 24, 31, 32, 49})
      expect_equals_reference(conv2d_problem(2, c_in, c_out, 1, {5, 7}, {1, 1}));
}

TEST_P(Pointwise, EqualsTheReferenceForAnyNumberOfPixels) {
  for (int64_t width = 1; width <= 25; ++width)
    expect_equals_reference(conv2d_problem(1, 20, 36, 1, {1, width}, {1, 1}));
}

TEST_P(Pointwise, EqualsTheReferenceForSumsInSeveralParts) {
  for (const int64_t deep : {255, 256, 257, 512, 770}) {
    expect_equals_reference(conv2d_problem(1, deep, 40, 1, {3, 5}, {1, 1}));
    expect_equals_reference(conv2d_problem(1, 40, deep, 1, {3, 5}, {1, 1}));
  }
}

TEST_P(Pointwise, EqualsTheReferenceInManyTasks) {
  expect_equals_reference(conv2d_problem(3, 16, 48, 1, {61, 59}, {1, 1}));  // more pixels than one task takes
  expect_equals_reference(conv2d_problem(1, 272, 1200, 1, {3, 4}, {1, 1}));  // more columns
  expect_equals_reference(conv2d_problem(1, 1200, 272, 1, {3, 4}, {1, 1}));
}

TEST_P(Pointwise, HasTheSameBytesForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  const Conv2dProblem problem = conv2d_problem(2, 300, 290, 1, {37, 17}, {1, 1});
  const Conv2dTensors t(problem, kPointwiseSeed);
  omp_set_num_threads(1);
  const GuardedFloats one = computed(problem, GetParam(), t);
  for (const int threads : {2, 3, 5}) {
    omp_set_num_threads(threads);
    const GuardedFloats some = computed(problem, GetParam(), t);
    EXPECT_TRUE(same_bytes(some.span(), one.span())) << threads << " threads";
  }
  omp_set_num_threads(before);
}

// On the boundary of a cache line it is written with streaming stores.
TEST_P(Pointwise, AResultTooLargeForTheCachesHasTheSameBytesAtEveryAddress) {
  const bool forward = GetParam() == Conv2dPass::kForward;
  Conv2dProblem problem = conv2d_problem(1, forward ? 20 : 1040, forward ? 1040 : 20, 1, {61, 67}, {1, 1});
  for (const bool relu_x : {false, true}) {
    problem.relu_x = relu_x;
    const Conv2dTensors t(problem, kPointwiseSeed);
    const GuardedFloats off_a_line = computed(problem, GetParam(), t);
    const std::size_t values = off_a_line.span().size(), whole_lines = values / kLineValues;
    ASSERT_GT(values * sizeof(float), kernels::cpu::kCachedBytes);
    std::vector<Line> lines(whole_lines + 2, Line::of(std::numeric_limits<float>::quiet_NaN()));
    lines.front() = lines.back() = Line::of(kGuardValue);
    write(problem, GetParam(), t, lines[1].values);
    for (const Line& guard : {lines.front(), lines.back()})
      for (const float v : guard.values) EXPECT_EQ(v, kGuardValue);
    EXPECT_TRUE(same_bytes(std::span<const float>(lines[1].values, values), off_a_line.span()))
        << (relu_x ? "ReLU" : "");
  }
}

TEST_P(Pointwise, NotANumberStaysInItsPixel) {
  const Conv2dProblem problem = conv2d_problem(1, 24, 40, 1, {3, 7}, {1, 1});
  const bool forward = GetParam() == Conv2dPass::kForward;
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF}) {
    Conv2dTensors t(problem, kPointwiseSeed);
    const int64_t channels = forward ? problem.c_in : problem.c_out;
    (forward ? t.x : t.dy).data()[9 * channels + 7] = value;
    const GuardedFloats got = computed(problem, GetParam(), t);
    const int64_t results = forward ? problem.c_out : problem.c_in;
    for (int64_t p = 0; p < 21; ++p)
      for (int64_t c = 0; c < results; ++c)
        EXPECT_EQ(std::isfinite(got.data()[p * results + c]), p != 9) << p << ", " << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Passes, Pointwise,
                         ::testing::Values(Conv2dPass::kForward, Conv2dPass::kBackwardInput),
                         [](const auto& info) {
                           return info.param == Conv2dPass::kForward ? "Forward" : "BackwardInput";
                         });

TEST(PointwiseForward, EqualsTheReferenceForEveryStride) {
  for (const Pair2 stride : {Pair2{1, 2}, {2, 1}, {2, 2}, {3, 2}, {9, 14}, {20, 20}})
    for (const bool relu_x : {false, true}) {
      Conv2dProblem problem = conv2d_problem(2, 33, 40, 1, {9, 14}, {1, 1}, stride);
      problem.relu_x = relu_x;
      const Conv2dTensors t(problem, kPointwiseSeed);
      const GuardedFloats got = computed(problem, Conv2dPass::kForward, t),
                          want = conv2d_reference(problem, Conv2dPass::kForward, t);
      EXPECT_TRUE(close(got.span(), want.span(), tolerance(DType::f32), kPointwiseSeed)) << problem;
    }
}

TEST(PointwiseForward, TheReLUKeepsNotANumber) {
  Conv2dProblem problem = conv2d_problem(1, 16, 16, 1, {1, 2}, {1, 1});
  problem.relu_x = true;
  Conv2dTensors t(problem, kPointwiseSeed);
  t.x.data()[3] = std::numeric_limits<float>::quiet_NaN();
  const GuardedFloats y = computed(problem, Conv2dPass::kForward, t);
  EXPECT_TRUE(std::isnan(y.data()[0]));
  EXPECT_TRUE(std::isfinite(y.data()[16]));
}

TEST(PointwiseFits, TakesOneByOneWindowsWithoutPaddingAlone) {
  const auto has = [](Conv2dPass pass, const Conv2dProblem& problem) {
    return kernels::cpu::has_conv2d(problem, pass);
  };
  const auto forward = Conv2dPass::kForward, input = Conv2dPass::kBackwardInput;
  EXPECT_TRUE(has(forward, conv2d_problem(1, 16, 16, 1, {3, 3}, {1, 1}, {2, 2})));
  EXPECT_FALSE(has(input, conv2d_problem(1, 16, 16, 1, {3, 3}, {1, 1}, {2, 2})));
  for (const Conv2dPass pass : {forward, input}) {
    EXPECT_TRUE(has(pass, conv2d_problem(1, 16, 16, 1, {3, 3}, {1, 1})));
    EXPECT_FALSE(has(pass, conv2d_problem(1, 15, 16, 1, {3, 3}, {1, 1})));
    EXPECT_FALSE(has(pass, conv2d_problem(1, 16, 15, 1, {3, 3}, {1, 1})));
    EXPECT_FALSE(has(pass, conv2d_problem(1, 32, 32, 2, {3, 3}, {1, 1})));
    EXPECT_FALSE(has(pass, conv2d_problem(1, 16, 16, 1, {3, 3}, {1, 1}, {1, 1}, {1, 0})));
    EXPECT_FALSE(has(pass, conv2d_problem(1, 16, 16, 1, {3, 3}, {1, 2})));
  }
}

}  // namespace
}  // namespace palimpsest::testing
