#include "palimpsest/kernels/cpu/conv2d/depthwise.h"

#include "tests/kernels/cpu/conv2d/conv2d_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

// The gradient of the weight of depthwise convolutions.
namespace palimpsest::testing {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

constexpr uint64_t kDepthwiseSeed = 6;

Conv2dProblem depthwise_problem(int64_t n, int64_t channels, Pair2 in, Pair2 kernel_size,
                                Pair2 stride = {1, 1}, Pair2 padding = {0, 0}, Pair2 dilation = {1, 1}) {
  return conv2d_problem(n, channels, channels, channels, in, kernel_size, stride, padding, dilation);
}

struct DepthwiseTensors {
  GuardedFloats x, dy;

  explicit DepthwiseTensors(const Conv2dProblem& p)
      : x(p.n * p.in.h * p.in.w * p.c_in, Random::stream(kDepthwiseSeed, 0)),
        dy(p.n * p.out.h * p.out.w * p.c_out, Random::stream(kDepthwiseSeed, 1)) {}
};

GuardedFloats depthwise_gradient(const Conv2dProblem& problem, const DepthwiseTensors& t) {
  GuardedFloats dw(problem.weights(), std::numeric_limits<float>::quiet_NaN());
  kernels::cpu::conv2d_backward_weight(problem, t.x.data(), t.dy.data(), dw.data());
  EXPECT_TRUE(dw.guards_hold()) << problem;
  return dw;
}

GuardedFloats reference_gradient(const Conv2dProblem& problem, const DepthwiseTensors& t) {
  GuardedFloats dw(problem.weights());
  kernels::reference::conv2d_backward_weight(problem, t.x.data(), t.dy.data(), dw.data());
  return dw;
}

void expect_depthwise_equals_reference(const Conv2dProblem& problem) {
  ASSERT_TRUE(kernels::cpu::conv2d::fits_depthwise(problem)) << problem;
  ASSERT_TRUE(kernels::cpu::has_conv2d(problem, Conv2dPass::kBackwardWeight)) << problem;
  const DepthwiseTensors t(problem);
  const GuardedFloats got = depthwise_gradient(problem, t), want = reference_gradient(problem, t);
  EXPECT_TRUE(close(got.span(), want.span(), tolerance(DType::f32), kDepthwiseSeed)) << problem;
}

TEST(DepthwiseWeight, EqualsTheReferenceForChannelsAroundVectors) {
  for (const int64_t channels : {16, 17, 24, 31, 32, 33, 48, 144, 150})
    for (const int64_t width : {3, 5, 7, 9, 11})
      expect_depthwise_equals_reference(
          depthwise_problem(2, channels, {8, 9}, {width, width}, {1, 1}, {width / 2, width / 2}));
}

TEST(DepthwiseWeight, EqualsTheReferenceForEveryGeometry) {
  for (const Pair2 kernel_size :
       {Pair2{3, 3}, {5, 5}, {7, 7}, {9, 9}, {11, 11}, {1, 3}, {2, 5}, {4, 7}, {9, 3}, {2, 11}})
    for (const Pair2 stride : {Pair2{1, 1}, {2, 2}, {1, 3}})
      for (const Pair2 padding : {Pair2{0, 0}, {1, 1}, {2, 3}, {9, 9}})
        for (const Pair2 dilation : {Pair2{1, 1}, {2, 3}})
          for (const Pair2 in : {Pair2{9, 14}, {7, 7}, {1, 2}, {12, 1}, {13, 25}})
            if (const auto problem = depthwise_problem(2, 19, in, kernel_size, stride, padding, dilation);
                problem.out.h > 0 && problem.out.w > 0)
              expect_depthwise_equals_reference(problem);
}

TEST(DepthwiseWeight, EqualsTheReferenceInManyTasks) {
  expect_depthwise_equals_reference(depthwise_problem(5, 272, {30, 28}, {5, 5}, {1, 1}, {2, 2}));
  expect_depthwise_equals_reference(depthwise_problem(1, 16, {150, 131}, {3, 3}, {2, 2}, {1, 1}));
}

TEST(DepthwiseWeight, HasTheSameBytesForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  const Conv2dProblem problem = depthwise_problem(3, 150, {29, 37}, {5, 5}, {2, 2}, {2, 2});
  const DepthwiseTensors t(problem);
  omp_set_num_threads(1);
  const GuardedFloats one = depthwise_gradient(problem, t);
  for (const int threads : {2, 3, 5}) {
    omp_set_num_threads(threads);
    const GuardedFloats some = depthwise_gradient(problem, t);
    EXPECT_TRUE(same_bytes(some.span(), one.span())) << threads << " threads";
  }
  omp_set_num_threads(before);
}

// One at a time, at corners, borders and inside, where padding and neighbouring channels are near.
TEST(DepthwiseWeight, NotANumberGoesWhereTheFormulaTakesItAndNowhereElse) {
  for (const Conv2dProblem& problem : {depthwise_problem(2, 17, {4, 9}, {3, 3}, {1, 1}, {1, 1}),
                                       depthwise_problem(1, 24, {7, 6}, {5, 5}, {2, 2}, {2, 2})}) {
    const DepthwiseTensors clean(problem);
    for (GuardedFloats DepthwiseTensors::* tensor : {&DepthwiseTensors::x, &DepthwiseTensors::dy})
      for (const float value : {std::nanf(""), HUGE_VALF}) {
        const auto size = static_cast<int64_t>((clean.*tensor).span().size());
        for (int64_t at = 0; at < size; at += 1 + size / 60) {
          DepthwiseTensors t = clean;
          (t.*tensor).data()[at] = value;
          const GuardedFloats got = depthwise_gradient(problem, t), want = reference_gradient(problem, t);
          for (std::size_t i = 0; i < want.span().size(); ++i)
            ASSERT_EQ(std::isfinite(got.span()[i]), std::isfinite(want.span()[i]))
                << problem << ", " << value << " at " << at << ", result " << i;
        }
      }
  }
}

TEST(DepthwiseWeightFits, TakesOneChannelPerGroupAlone) {
  const Conv2dProblem good = depthwise_problem(1, 32, {9, 9}, {3, 3}, {1, 1}, {1, 1});
  const auto fits = [&](auto change) {
    Conv2dProblem problem = good;
    change(problem);
    return kernels::cpu::conv2d::fits_depthwise(problem);
  };
  EXPECT_TRUE(fits([](Conv2dProblem&) {}));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.groups = 16; })) << "groups of 2";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.c_out = 64; })) << "two outputs per channel";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.c_in = p.c_out = p.groups = 2; })) << "less than a vector";
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.kernel_size.w = 4; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.kernel_size.w = 1; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.padding.w = -1; }));
  EXPECT_FALSE(fits([](Conv2dProblem& p) { p.out.w = 0; })) << "no output";
  EXPECT_FALSE(kernels::cpu::has_conv2d(good, Conv2dPass::kForward));
  EXPECT_FALSE(kernels::cpu::has_conv2d(good, Conv2dPass::kBackwardInput));
}

}  // namespace
}  // namespace palimpsest::testing
