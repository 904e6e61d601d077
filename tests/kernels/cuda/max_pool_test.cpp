// kernels/cuda/max_pool.h, executed by the emulator: the bytes of the reference.
#include "palimpsest/kernels/cuda/max_pool.h"

#include "palimpsest/kernels/cuda/max_pool/kernels.cuh"
#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/max_pool_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace palimpsest::testing {
namespace {

void forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax) {
  kernels::cuda::max_pool_forward(problem, x, z, argmax, nullptr);
}
void backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx) {
  kernels::cuda::max_pool_backward(problem, dz, argmax, dx, nullptr);
}

template <class Type>
class CudaMaxPool : public ::testing::Test {
 protected:
  ~CudaMaxPool() override { cuda_emulator::settings() = {}; }

  template <class Draw>
  void expect_right(const PoolCase& c, Layout layout, int64_t misaligned_by, const Draw& draw) {
    cuda_emulator::settings().order = kOrders[cases_++ % 3];
    expect_reference<Type>(c, layout, misaligned_by, draw, forward, backward);
  }

  int cases_ = 0;  // each takes the next order
};
using Types = ::testing::Types<F32, F64, F16, BF16>;
TYPED_TEST_SUITE(CudaMaxPool, Types);

TYPED_TEST(CudaMaxPool, IsTheReferenceOnEveryWindowWidthAndLayout) {
  const auto draw = [](Random& random) { return std::floor(random.uniform(-64, 64)) / 16; };
  for (const PoolCase& c : pool_cases())
    for (const Layout layout : kLayouts)  // every other case misaligned, to save time
      this->expect_right(c, layout, this->cases_ % 4 < 2 ? 0 : 3, draw);
}

TYPED_TEST(CudaMaxPool, TakesTheFirstOfEqualValuesAndTheLastNaN) {
  const double kSpecial[] = {-HUGE_VAL, -HUGE_VAL, -1, -0.0, 0.0, 0.0, 1, HUGE_VAL, NAN, -NAN};
  const auto draw = [&](Random& random) { return kSpecial[static_cast<int64_t>(random.uniform(0, 10))]; };
  for (const PoolCase& c : pool_cases())
    if (c.in.w < 60)
      for (const Layout layout : kLayouts) this->expect_right(c, layout, 0, draw);
}

TYPED_TEST(CudaMaxPool, WithoutAnArgmaxTheValuesAreTheSame) {
  for (const Layout layout : kLayouts)
    expect_same_without_argmax<TypeParam>(
        PoolCase{2, 16, {9, 12}, square(3, 2, 1)}.problem(layout, TypeParam::kDType), forward);
}

TYPED_TEST(CudaMaxPool, IsTheReferenceForWindowsInStepsOfTwoWithAnyPadding) {
  const auto draw = [](Random& random) { return std::floor(random.uniform(-64, 64)) / 16; };
  for (const PoolWindow& window :
       {square(3, 2, 0), square(2, 2, 1), square(3, 2, 1), square(2, 2, 0),
        PoolWindow{{3, 3}, {2, 2}, {1, 0}, {1, 1}}, PoolWindow{{2, 2}, {2, 2}, {0, 1}, {1, 1}},
        PoolWindow{{3, 3}, {2, 2}, {1, 1}, {1, 2}},  // none of the special ones
        PoolWindow{{3, 2}, {2, 2}, {1, 1}, {1, 1}}})
    for (const bool ceil_mode : {false, true})
      for (const Pair2 in : {Pair2{1, 3}, Pair2{2, 2}, Pair2{5, 4}, Pair2{8, 9}})
        for (const Layout layout : kLayouts)
          if (const PoolCase c{2, 16, in, window, ceil_mode};
              c.problem(layout, TypeParam::kDType).out.h > 0 &&
              c.problem(layout, TypeParam::kDType).out.w > 0)
            this->expect_right(c, layout, this->cases_ % 4 < 2 ? 0 : 3, draw);
}

// Tensors of 2^31 vectors take these kernels. They are run over small ones.
TEST(CudaMaxPoolIn64Bits, IsTheReference) {
  using namespace kernels::cuda::max_pool_detail;
  using N = int64_t;
  constexpr int kThreads = kernels::cuda::kThreads;
  const auto axes = [](const MaxPoolProblem& problem) {
    const PoolWindow& p = problem.window;
    return std::pair(axis_of<N>(p.kernel_size.h, p.stride.h, p.padding.h, p.dilation.h),
                     axis_of<N>(p.kernel_size.w, p.stride.w, p.padding.w, p.dilation.w));
  };
  const auto wide_forward = [&](const MaxPoolProblem& problem, const float* x, float* z, uint8_t* argmax) {
    const auto in = vectors_of<N>(problem, problem.in, 1), out = vectors_of<N>(problem, problem.out, 1);
    const auto [down, right] = axes(problem);
    if (out.count > 0)
      kernels::cuda::launch("forward", {ceil_divide(out.count, kThreads), kThreads}, nullptr,
                            max_pool_forward_kernel<float, 1, N, AnyAxis<N>>, in, out, down, right, x, z,
                            argmax);
  };
  const auto wide_backward = [&](const MaxPoolProblem& problem, const float* dz, const uint8_t* argmax,
                                 float* dx) {
    const auto in = vectors_of<N>(problem, problem.in, 1), out = vectors_of<N>(problem, problem.out, 1);
    const auto [down, right] = axes(problem);
    if (in.count > 0)
      kernels::cuda::launch("backward", {ceil_divide(in.count, kThreads), kThreads}, nullptr,
                            max_pool_backward_kernel<float, 1, N, AnyAxis<N>>, in, out, down, right, dz,
                            argmax, dx);
  };
  for (const PoolCase& c : pool_cases())
    for (const Layout layout : kLayouts)
      expect_reference<F32>(
          c, layout, 0, [](Random& random) { return std::floor(random.uniform(-64, 64)) / 16; }, wide_forward,
          wide_backward);
}

TEST(CudaDivisor, DividesAsTheProcessorDoes) {
  Random random(5);
  const int32_t most = std::numeric_limits<int32_t>::max();
  const auto any = [&] { return static_cast<int32_t>(std::exp2(random.uniform(0, 31)) - 1); };
  const auto expect = [](int32_t number, int32_t divisor) {
    const kernels::cuda::Divisor<int32_t> by(divisor);
    ASSERT_EQ(by.divide(number), number / divisor) << number << " / " << divisor;
    int32_t quotient = number;
    ASSERT_EQ(by.take_remainder(quotient), number % divisor);
    ASSERT_EQ(quotient, number / divisor);
  };
  for (const int32_t divisor :
       {1, 2, 3, 5, 7, 112, 255, 256, 641, 65535, 65536, 65537, 1 << 30, most - 1, most})
    for (const int32_t number : {0, 1, 2, divisor - 1, divisor, most - 1, most, most / divisor * divisor,
                                 most / divisor * divisor - 1})
      expect(number, divisor);
  for (int i = 0; i < 200000; ++i) expect(any(), std::max(1, any()));
}

TEST(CudaMaxPoolContract, EachIsOneLaunchAndAnEmptyBatchNone) {
  const MaxPoolProblem problem = PoolCase{1, 8, {9, 9}, square(3, 2, 1)}.problem(Layout::kNCHW, DType::f32);
  Outcome<F32> o(problem, 0);
  Guarded<float> x = o.dx;
  const int64_t before = cuda_emulator::launches();
  forward(problem, x.data(), o.z.data(), o.argmax.data());
  EXPECT_EQ(cuda_emulator::launches() - before, 1);
  backward(problem, o.z.data(), o.argmax.data(), o.dx.data());
  EXPECT_EQ(cuda_emulator::launches() - before, 2);
  MaxPoolProblem empty = problem;
  empty.n = 0;
  forward(empty, nullptr, nullptr, nullptr);
  backward(empty, nullptr, nullptr, nullptr);
  EXPECT_EQ(cuda_emulator::launches() - before, 2);
}

}  // namespace
}  // namespace palimpsest::testing
