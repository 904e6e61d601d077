#include "tests/kernels/max_pool_case.h"

#include <gtest/gtest.h>
#include <omp.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

namespace palimpsest::testing {
namespace {

/// Runs the CPU kernels on the same problem.
template <class Type, class Draw>
void expect_reference(const PoolCase& c, Layout layout, int64_t misaligned_by, const Draw& draw) {
  expect_reference<Type>(c, layout, misaligned_by, draw, kernels::cpu::max_pool_forward,
                         kernels::cpu::max_pool_backward);
}

template <class Type>
class MaxPool : public ::testing::Test {};
using Types = ::testing::Types<F32, F64, F16, BF16>;
TYPED_TEST_SUITE(MaxPool, Types);

TYPED_TEST(MaxPool, IsTheReferenceOnEveryWindowWidthAndLayout) {
  const auto draw = [](Random& random) { return std::floor(random.uniform(-64, 64)) / 16; };
  for (const PoolCase& c : pool_cases())
    for (const Layout layout : kLayouts)
      for (const int64_t misaligned_by : {0, 3}) expect_reference<TypeParam>(c, layout, misaligned_by, draw);
}

TYPED_TEST(MaxPool, OfEqualValuesTheFirstAndOfNaNsTheLastIsTaken) {
  const double kSpecial[] = {-HUGE_VAL, -HUGE_VAL, -1, -0.0, 0.0, 0.0, 1, HUGE_VAL, NAN, -NAN};
  // All kinds; then mostly -infinity, so that whole windows are -infinity.
  for (const int64_t kinds : {10, 6, 2}) {
    const auto draw = [&](Random& random) {
      return kSpecial[static_cast<int64_t>(random.uniform(0, static_cast<double>(kinds)))];
    };
    for (const PoolCase& c : pool_cases())
      for (const Layout layout : kLayouts) expect_reference<TypeParam>(c, layout, 0, draw);
  }
}

TYPED_TEST(MaxPool, AWindowOfPaddingIsMinusInfinityAndHasNoPosition) {
  const PoolCase c{1, 2, {1, 1}, square(2, 1, 1, 2)};
  for (const Layout layout : kLayouts) {
    const MaxPoolProblem problem = c.problem(layout, TypeParam::kDType);
    ASSERT_EQ(problem.out.h * problem.out.w, 1);
    typename TypeParam::Stored x[2] = {}, z[2], dx[2], dz[2] = {TypeParam::of(1), TypeParam::of(1)};
    uint8_t argmax[2];
    kernels::cpu::max_pool_forward(problem, x, z, argmax);
    kernels::cpu::max_pool_backward(problem, dz, argmax, dx);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(z[i], TypeParam::of(-HUGE_VAL));
      EXPECT_EQ(argmax[i], kNoPosition);
      EXPECT_EQ(dx[i], TypeParam::of(0));
    }
  }
}

TYPED_TEST(MaxPool, WithoutAnArgmaxTheValuesAreTheSame) {
  for (const Layout layout : kLayouts)
    expect_same_without_argmax<TypeParam>(
        PoolCase{2, 5, {9, 40}, square(3, 2, 1)}.problem(layout, TypeParam::kDType),
        kernels::cpu::max_pool_forward);
}

TYPED_TEST(MaxPool, TheNumberOfThreadsDoesNotChangeAByte) {
  const int before = omp_get_max_threads();
  for (const Layout layout : kLayouts) {
    const MaxPoolProblem problem =
        PoolCase{3, 20, {50, 50}, square(3, 1, 1)}.problem(layout, TypeParam::kDType);
    Guarded<typename TypeParam::Stored> x(problem.planes() * 50 * 50, 0), dz = x;
    Random random(5);
    for (std::size_t i = 0; i < x.values().size(); ++i) {
      x.data()[i] = TypeParam::of(std::floor(random.uniform(-128, 128)) / 16);
      dz.data()[i] = TypeParam::of(std::floor(random.uniform(-128, 128)) / 64);
    }
    omp_set_num_threads(1);
    Outcome<TypeParam> one(problem, 0);
    kernels::cpu::max_pool_forward(problem, x.data(), one.z.data(), one.argmax.data());
    kernels::cpu::max_pool_backward(problem, dz.data(), one.argmax.data(), one.dx.data());
    for (const int threads : {2, 3, 7}) {
      omp_set_num_threads(threads);
      Outcome<TypeParam> some(problem, 0);
      kernels::cpu::max_pool_forward(problem, x.data(), some.z.data(), some.argmax.data());
      kernels::cpu::max_pool_backward(problem, dz.data(), some.argmax.data(), some.dx.data());
      EXPECT_TRUE(same_bytes(some.z.values(), one.z.values())) << threads << " threads";
      EXPECT_TRUE(same_bytes(some.argmax.values(), one.argmax.values())) << threads << " threads";
      EXPECT_TRUE(same_bytes(some.dx.values(), one.dx.values())) << threads << " threads";
    }
  }
  omp_set_num_threads(before);
}

TYPED_TEST(MaxPool, BytesThatAreNoPositionsWriteNothingOutside) {
  Random random(8);
  for (const Layout layout : kLayouts) {
    const MaxPoolProblem problem = PoolCase{2, 3, {7, 9}, square(3, 2, 1)}.problem(layout, TypeParam::kDType);
    Outcome<TypeParam> outcome(problem, 0);
    for (int round = 0; round < 50; ++round) {
      for (std::size_t i = 0; i < outcome.argmax.values().size(); ++i)
        outcome.argmax.data()[i] = static_cast<uint8_t>(random.uniform(0, 256));
      kernels::cpu::max_pool_backward(problem, outcome.z.data(), outcome.argmax.data(), outcome.dx.data());
      ASSERT_TRUE(outcome.dx.guards_hold());
    }
  }
}

// ---- 16-bit storage

template <class Type>
class MaxPoolHalf : public ::testing::Test {};
using HalfTypes = ::testing::Types<F16, BF16>;
TYPED_TEST_SUITE(MaxPoolHalf, HalfTypes);

TYPED_TEST(MaxPoolHalf, EveryValueGoesThroughAWindowOfOneUnchanged) {
  constexpr int kInfinity = TypeParam::kExponents << TypeParam::kMantissa;
  std::vector<uint16_t> all(65536), z(65536), dx(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<uint8_t> argmax(65536);
  for (const Layout layout : kLayouts) {
    const MaxPoolProblem problem =
        PoolCase{1, 256, {16, 16}, square(1, 1, 0)}.problem(layout, TypeParam::kDType);
    kernels::cpu::max_pool_forward(problem, all.data(), z.data(), argmax.data());
    kernels::cpu::max_pool_backward(problem, all.data(), argmax.data(), dx.data());
    EXPECT_EQ(z, all);
    for (int i = 0; i < 65536; ++i) {
      ASSERT_EQ(argmax[i], 0) << i;
      if ((i & 0x7fff) > kInfinity)
        EXPECT_GT(dx[i] & 0x7fff, kInfinity) << "not a number any more: " << i;
      else
        EXPECT_EQ(dx[i], i == 0x8000 ? 0 : i);  // a sum begins with +0
    }
  }
}

#if defined(__x86_64__)
TEST(MaxPoolF16, SubnormalGradientsPassWhereTheProcessorFlushesThoseOfF32) {
  constexpr unsigned kFlush = 0x8040;  // results and operands
  std::vector<uint16_t> dz(2048), dx(2048);
  for (std::size_t i = 0; i < dz.size(); ++i) dz[i] = static_cast<uint16_t>(i);
  const std::vector<uint8_t> argmax(2048);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  for (const Layout layout : kLayouts) {
    const MaxPoolProblem problem = PoolCase{1, 8, {16, 16}, square(1, 1, 0)}.problem(layout, DType::f16);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | kFlush);
    kernels::cpu::max_pool_backward(problem, dz.data(), argmax.data(), dx.data());
    _mm_setcsr(before);
    EXPECT_EQ(dx, dz);
  }
  omp_set_num_threads(threads);
}
#endif

// Three windows whose maximum is the pixel in the middle.
TYPED_TEST(MaxPoolHalf, SumsOfGradientsAreRoundedOnceToNearestEven) {
  constexpr int64_t kRows = 64;
  const PoolWindow window{{1, 3}, {1, 1}, {0, 1}, {1, 1}};
  Random random(21);
  for (int exponent = 0; exponent < TypeParam::kExponents; ++exponent) {
    for (const Layout layout : kLayouts) {
      const MaxPoolProblem problem = PoolCase{1, 1, {kRows, 3}, window}.problem(layout, TypeParam::kDType);
      std::vector<uint16_t> dz(kRows * 3), got(dz.size()), want(dz.size());
      std::vector<uint8_t> argmax(dz.size());
      for (std::size_t i = 0; i < dz.size(); ++i) {
        // Exponents so close that the sum is exact in f32.
        const int raised =
            std::min(exponent + static_cast<int>(random.uniform(0, 5)), TypeParam::kExponents - 1);
        const int mantissa = static_cast<int>(random.uniform(0, 1 << TypeParam::kMantissa));
        // At the upper end of one sign: a sum of both could leave the range of f32 and come back.
        const bool negative = exponent + 8 < TypeParam::kExponents && random.uniform() < 0.5;
        const int sign = negative ? 0x8000 : 0;
        dz[i] = static_cast<uint16_t>(sign | raised << TypeParam::kMantissa | mantissa);
        argmax[i] = static_cast<uint8_t>(2 - i % 3);
      }
      kernels::cpu::max_pool_backward(problem, dz.data(), argmax.data(), got.data());
      kernels::reference::max_pool_backward(problem, dz.data(), argmax.data(), want.data());
      EXPECT_EQ(got, want) << "exponent " << exponent;
    }
  }
}

// ---- Geometry

TEST(PooledSize, CountsTheWindowsThatFit) {
  for (int64_t size = 1; size < 12; ++size)
    for (int64_t kernel = 1; kernel < 6; ++kernel)
      for (int64_t stride = 1; stride < 5; ++stride)
        for (int64_t padding = 0; padding <= kernel / 2; ++padding)
          for (int64_t dilation = 1; dilation < 4; ++dilation) {
            int64_t whole = 0, begun = 0;
            for (int64_t start = -padding; start < size + padding; start += stride) {
              const int64_t end = start + (kernel - 1) * dilation;  // the last pixel
              whole += end < size + padding;
              // In ceil mode a window may reach less than one stride beyond, and begins on a pixel or before.
              begun += end < size + padding + stride - 1 && start < size;
            }
            const auto count = [&](bool ceil) {
              return std::max<int64_t>(0,
                                       pooled_size<int64_t>(size, kernel, stride, padding, dilation, ceil));
            };
            EXPECT_EQ(count(false), whole) << size << " " << kernel << " " << stride << " " << padding;
            EXPECT_EQ(count(true), begun) << size << " " << kernel << " " << stride << " " << padding;
          }
}

}  // namespace
}  // namespace palimpsest::testing
