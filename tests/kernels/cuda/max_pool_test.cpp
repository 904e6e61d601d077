// kernels/cuda/max_pool.h, executed by the emulator: the bytes of the reference.
#include "palimpsest/kernels/cuda/max_pool.h"

#include "tests/kernels/cuda/emulated.h"
#include "tests/kernels/max_pool_case.h"

#include <gtest/gtest.h>

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
