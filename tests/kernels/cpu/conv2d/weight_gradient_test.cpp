#include "tests/kernels/cpu/conv2d/conv2d_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <limits>

// The gradient of the weight of convolutions whose channels fill vectors.
namespace palimpsest::testing {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

constexpr uint64_t kWeightSeed = 5;

GuardedFloats random_input(const Conv2dProblem& problem) {
  return {problem.n * problem.in.h * problem.in.w * problem.c_in, Random::stream(kWeightSeed, 0)};
}
GuardedFloats random_gradient(const Conv2dProblem& problem) {
  return {problem.n * problem.out.h * problem.out.w * problem.c_out, Random::stream(kWeightSeed, 1)};
}

GuardedFloats computed(const Conv2dProblem& problem, const GuardedFloats& x, const GuardedFloats& dy) {
  GuardedFloats dw(problem.weights(), std::numeric_limits<float>::quiet_NaN());
  kernels::cpu::conv2d_backward_weight(problem, x.data(), dy.data(), dw.data());
  EXPECT_TRUE(dw.guards_hold()) << problem;
  return dw;
}

void expect_equals_reference(const Conv2dProblem& problem) {
  ASSERT_TRUE(kernels::cpu::has_conv2d(problem, Conv2dPass::kBackwardWeight)) << problem;
  const GuardedFloats x = random_input(problem), dy = random_gradient(problem),
                      got = computed(problem, x, dy);
  GuardedFloats want(problem.weights());
  kernels::reference::conv2d_backward_weight(problem, x.data(), dy.data(), want.data());
  EXPECT_TRUE(close(got.span(), std::span<const float>(want.span()), tolerance(DType::f32), kWeightSeed))
      << problem;
}

TEST(Conv2dWeight, EqualsTheReferenceForChannelsAroundTiles) {
  for (const int64_t c_in : {32, 33, 40, 63, 64, 65})
    for (const int64_t c_out : {16, 17, 24, 31, 48})
      expect_equals_reference(conv2d_problem(2, c_in, c_out, 1, {5, 7}, {1, 1}));
}

TEST(Conv2dWeight, EqualsTheReferenceForEveryGeometry) {
  for (const Pair2 kernel_size : {Pair2{1, 1}, {3, 3}, {2, 5}})
    for (const Pair2 stride : {Pair2{1, 1}, {2, 2}, {1, 3}})
      for (const Pair2 padding : {Pair2{0, 0}, {1, 1}, {2, 0}, {9, 9}})
        for (const Pair2 dilation : {Pair2{1, 1}, {2, 3}})
          if (const auto problem =
                  conv2d_problem(2, 32, 16, 1, {9, 14}, kernel_size, stride, padding, dilation);
              problem.out.h > 0 && problem.out.w > 0)
            expect_equals_reference(problem);
}

TEST(Conv2dWeight, EqualsTheReferenceForWideGroups) {
  expect_equals_reference(conv2d_problem(2, 96, 48, 3, {6, 5}, {3, 3}, {1, 1}, {1, 1}));
}

TEST(Conv2dWeight, ReadsTheReLUOfItsInput) {
  for (const int64_t c_in : {32, 40, 65})
    for (const Pair2 kernel_size : {Pair2{1, 1}, {3, 3}}) {
      Conv2dProblem problem = conv2d_problem(2, c_in, 24, 1, {6, 7}, kernel_size, {2, 1}, {1, 1});
      problem.relu_x = true;
      expect_equals_reference(problem);
    }
}

TEST(Conv2dWeight, EqualsTheReferenceInManyTasks) {
  // More rows and columns of tiles than one task takes: those of 384 channels read dy where it lies, whatever the
  // instruction set, those of 528 pack it. Then more pixels than one task takes.
  for (const int64_t c_out : {272, 384, 528})
    expect_equals_reference(conv2d_problem(1, 352, c_out, 1, {3, 4}, {1, 1}));
  expect_equals_reference(conv2d_problem(3, 32, 16, 1, {50, 41}, {1, 1}));
}

TEST(Conv2dWeight, HasTheSameBytesForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  const Conv2dProblem problem = conv2d_problem(3, 32, 24, 1, {45, 31}, {3, 3}, {1, 1}, {1, 1});
  const GuardedFloats x = random_input(problem), dy = random_gradient(problem);
  omp_set_num_threads(1);
  const GuardedFloats one = computed(problem, x, dy);
  for (const int threads : {2, 3, 5}) {
    omp_set_num_threads(threads);
    const GuardedFloats some = computed(problem, x, dy);
    EXPECT_TRUE(same_bytes(some.span(), one.span())) << threads << " threads";
  }
  omp_set_num_threads(before);
}

TEST(Conv2dWeight, NotANumberStaysInItsRowOrColumn) {
  const Conv2dProblem problem = conv2d_problem(1, 32, 16, 1, {3, 3}, {1, 1});
  GuardedFloats x = random_input(problem);
  GuardedFloats dy = random_gradient(problem);
  x.data()[2 * problem.c_in + 7] = std::numeric_limits<float>::quiet_NaN();
  dy.data()[5 * problem.c_out + 3] = std::numeric_limits<float>::infinity();
  const GuardedFloats dw = computed(problem, x, dy);
  for (int64_t o = 0; o < problem.c_out; ++o)
    for (int64_t i = 0; i < problem.c_in; ++i)
      EXPECT_EQ(std::isfinite(dw.data()[o * problem.c_in + i]), o != 3 && i != 7) << o << ", " << i;
}

TEST(Conv2dWeight, OtherKernelsReadNoReLU) {
  Conv2dProblem grouped = conv2d_problem(1, 32, 32, 8, {5, 5}, {3, 3}, {1, 1}, {1, 1});
  Conv2dProblem depthwise = conv2d_problem(1, 32, 32, 32, {5, 5}, {3, 3}, {1, 1}, {1, 1});
  for (Conv2dProblem* problem : {&grouped, &depthwise}) {
    EXPECT_TRUE(kernels::cpu::has_conv2d(*problem, Conv2dPass::kBackwardWeight));
    problem->relu_x = true;
    for (const Conv2dPass pass :
         {Conv2dPass::kForward, Conv2dPass::kBackwardInput, Conv2dPass::kBackwardWeight})
      EXPECT_FALSE(kernels::cpu::has_conv2d(*problem, pass));
  }
}

TEST(Conv2dWeight, NoKernelIsOfferedWithoutOutputs) {
  for (const auto& problem : {conv2d_problem(1, 64, 64, 1, {2, 2}, {3, 3}, {1, 1}, {0, 0}),
                              conv2d_problem(1, 64, 64, 1, {0, 7}, {1, 1}, {1, 1}, {0, 0}),
                              conv2d_problem(0, 64, 64, 1, {7, 7}, {1, 1}, {1, 1}, {0, 0})})
    for (const Conv2dPass pass :
         {Conv2dPass::kForward, Conv2dPass::kBackwardInput, Conv2dPass::kBackwardWeight})
      EXPECT_FALSE(kernels::cpu::has_conv2d(problem, pass)) << problem;
}

TEST(Conv2dWeight, IsNotOfferedForNarrowChannels) {
  for (const auto& [c_in, c_out] : {std::pair<int64_t, int64_t>{31, 16}, {32, 15}, {3, 64}})
    EXPECT_FALSE(kernels::cpu::has_conv2d(conv2d_problem(1, c_in, c_out, 1, {3, 3}, {1, 1}),
                                          Conv2dPass::kBackwardWeight));
}

}  // namespace
}  // namespace palimpsest::testing
