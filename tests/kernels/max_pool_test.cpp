#include "palimpsest/kernels/max_pool.h"

#include "palimpsest/base/random.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::kMaxPoolPositions;
using kernels::kNoPosition;
using kernels::MaxPoolLayer;
using kernels::pooled_size;
using kernels::PoolWindow;

// ---- The storage types, and numbers in them

struct F32 {
  using Stored = float;
  static constexpr DType kDType = DType::f32;
  static Stored of(double value) { return static_cast<float>(value); }
};
struct F64 {
  using Stored = double;
  static constexpr DType kDType = DType::f64;
  static Stored of(double value) { return value; }
};
struct BF16 {
  using Stored = uint16_t;
  static constexpr DType kDType = DType::bf16;
  static constexpr int kMantissa = 7, kExponents = 255;
  static Stored of(double value) {  // of numbers that bf16 has
    return static_cast<Stored>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  }
};
struct F16 {
  using Stored = uint16_t;
  static constexpr DType kDType = DType::f16;
  static constexpr int kMantissa = 10, kExponents = 31;
  static Stored of(double value) {  // of normal numbers that f16 has, zero, infinity and NaN
    const uint32_t f32 = std::bit_cast<uint32_t>(static_cast<float>(value));
    const uint32_t sign = f32 >> 16 & 0x8000, magnitude = f32 & 0x7fffffff;
    if (magnitude == 0) return static_cast<Stored>(sign);
    if (magnitude >= 0x7f800000) return static_cast<Stored>(sign | 0x7c00 | (magnitude > 0x7f800000 ? 1 : 0));
    return static_cast<Stored>(sign | (magnitude - (112u << 23)) >> 13);
  }
};

struct PoolCase {
  int64_t n, c;
  Pair2 in;
  PoolWindow window;
  bool ceil_mode = false;

  MaxPoolLayer layer(Layout layout, DType dtype) const {
    const PoolWindow& p = window;
    return {n,
            c,
            in,
            {pooled_size(in.h, p.kernel.h, p.stride.h, p.padding.h, p.dilation.h, ceil_mode),
             pooled_size(in.w, p.kernel.w, p.stride.w, p.padding.w, p.dilation.w, ceil_mode)},
            window,
            layout,
            dtype};
  }
};

std::ostream& operator<<(std::ostream& out, const PoolCase& c) {
  const PoolWindow& p = c.window;
  return out << "(" << c.n << ", " << c.c << ", " << c.in.h << ", " << c.in.w << "), kernel " << p.kernel.h
             << "x" << p.kernel.w << ", stride " << p.stride.h << "x" << p.stride.w << ", padding "
             << p.padding.h << "x" << p.padding.w << ", dilation " << p.dilation.h << "x" << p.dilation.w
             << (c.ceil_mode ? ", ceil mode" : "");
}

PoolWindow square(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation = 1) {
  return {{kernel, kernel}, {stride, stride}, {padding, padding}, {dilation, dilation}};
}

/// Windows of every kind over rows around the vector width, and around the number of channels in a vector.
std::vector<PoolCase> cases() {
  std::vector<PoolCase> all;
  const std::vector<PoolWindow> windows = {square(3, 2, 1),
                                           square(2, 2, 0),
                                           square(3, 1, 1),
                                           square(1, 1, 0),
                                           square(2, 3, 1),
                                           square(3, 2, 1, 2),
                                           square(5, 4, 2, 3),
                                           {{2, 3}, {3, 1}, {1, 0}, {1, 2}},
                                           {{1, 7}, {1, 5}, {0, 3}, {4, 1}}};
  for (const PoolWindow& window : windows)
    for (const bool ceil_mode : {false, true})
      for (const int64_t width : {13, 31, 32, 33, 65, 130})
        all.push_back({2, 3, {14, width}, window, ceil_mode});
  for (const int64_t channels : {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 70})
    all.push_back({2, channels, {9, 8}, square(3, 2, 1), false});
  all.push_back({3, 5, {6, 6}, square(15, 1, 7), false});  // 225 positions, most of them outside
  all.push_back({1, 2, {20, 20}, {{15, 17}, {2, 3}, {7, 8}, {1, 1}}, false});  // 255 positions
  all.push_back({1, 3, {1, 1}, square(1, 1, 0), false});
  all.push_back({2, 40, {1, 1}, square(2, 1, 1, 2), false});  // a window between the pixels: it holds none
  all.push_back({0, 3, {8, 8}, square(3, 2, 1), false});
  return all;
}

/// Values around which nothing may be written.
template <class Stored>
class Guarded {
 public:
  Guarded(int64_t size, int64_t misaligned_by)
      : begin_(kGuard + misaligned_by),
        size_(size),
        values_(static_cast<std::size_t>(size + 2 * kGuard + 8), guard()) {}

  Stored* data() { return values_.data() + begin_; }
  std::span<const Stored> values() const {
    return {values_.data() + begin_, static_cast<std::size_t>(size_)};
  }
  bool guards_hold() const {
    for (int64_t i = 0; i < static_cast<int64_t>(values_.size()); ++i)
      if ((i < begin_ || i >= begin_ + size_) && values_[static_cast<std::size_t>(i)] != guard())
        return false;
    return true;
  }

 private:
  static constexpr int64_t kGuard = 64;
  static Stored guard() { return static_cast<Stored>(77); }
  int64_t begin_, size_;
  std::vector<Stored> values_;
};

template <class Type>
struct Outcome {
  Guarded<typename Type::Stored> z, dx;
  Guarded<uint8_t> argmax;

  Outcome(const MaxPoolLayer& layer, int64_t misaligned_by)
      : z(layer.planes() * layer.out.h * layer.out.w, misaligned_by),
        dx(layer.planes() * layer.in.h * layer.in.w, misaligned_by),
        argmax(layer.planes() * layer.out.h * layer.out.w, misaligned_by) {}
};

/// Forward, then backward, by the CPU kernels and by the reference; expects the same bytes.
template <class Type, class Draw>
void expect_reference(const PoolCase& c, Layout layout, int64_t misaligned_by, const Draw& draw) {
  const MaxPoolLayer layer = c.layer(layout, Type::kDType);
  Outcome<Type> got(layer, misaligned_by), want(layer, misaligned_by);
  Guarded<typename Type::Stored> x = got.dx, dz = got.z;
  Random random(11);
  for (std::size_t i = 0; i < x.values().size(); ++i) x.data()[i] = Type::of(draw(random));
  // Eighths: their sums are exact in every type, so the order and the type of additions play no part.
  for (std::size_t i = 0; i < dz.values().size(); ++i)
    dz.data()[i] = Type::of(std::floor(random.uniform(-8, 8)) / 8);
  kernels::cpu::max_pool_forward(layer, x.data(), got.z.data(), got.argmax.data());
  kernels::cpu::max_pool_backward(layer, dz.data(), got.argmax.data(), got.dx.data());
  kernels::reference::max_pool_forward(layer, x.data(), want.z.data(), want.argmax.data());
  kernels::reference::max_pool_backward(layer, dz.data(), want.argmax.data(), want.dx.data());
  const auto where = ::testing::Message() << c << (layout == Layout::kNCHW ? ", NCHW" : ", channels last")
                                          << ", misaligned by " << misaligned_by << ", seed 11";
  EXPECT_TRUE(same_bytes(got.z.values(), want.z.values())) << where;
  EXPECT_TRUE(same_bytes(got.argmax.values(), want.argmax.values())) << where;
  EXPECT_TRUE(same_bytes(got.dx.values(), want.dx.values())) << where;
  EXPECT_TRUE(got.z.guards_hold() && got.argmax.guards_hold() && got.dx.guards_hold()) << where;
}

template <class Type>
class MaxPool : public ::testing::Test {};
using Types = ::testing::Types<F32, F64, F16, BF16>;
TYPED_TEST_SUITE(MaxPool, Types);

constexpr Layout kLayouts[] = {Layout::kNCHW, Layout::kChannelsLast};

TYPED_TEST(MaxPool, IsTheReferenceOnEveryWindowWidthAndLayout) {
  const auto draw = [](Random& random) { return std::floor(random.uniform(-64, 64)) / 16; };
  for (const PoolCase& c : cases())
    for (const Layout layout : kLayouts)
      for (const int64_t misaligned_by : {0, 3}) expect_reference<TypeParam>(c, layout, misaligned_by, draw);
}

TYPED_TEST(MaxPool, OfEqualValuesTheFirstAndOfNaNsTheLastIsTaken) {
  const double kSpecial[] = {-HUGE_VAL, -HUGE_VAL, -1, -0.0, 0.0, 0.0, 1, HUGE_VAL, NAN, -NAN};
  // All kinds; then mostly -infinity, so that whole windows are.
  for (const int64_t kinds : {10, 6, 2}) {
    const auto draw = [&](Random& random) {
      return kSpecial[static_cast<int64_t>(random.uniform(0, static_cast<double>(kinds)))];
    };
    for (const PoolCase& c : cases())
      for (const Layout layout : kLayouts) expect_reference<TypeParam>(c, layout, 0, draw);
  }
}

TYPED_TEST(MaxPool, AWindowOfPaddingIsMinusInfinityAndHasNoPosition) {
  const PoolCase c{1, 2, {1, 1}, square(2, 1, 1, 2)};
  for (const Layout layout : kLayouts) {
    const MaxPoolLayer layer = c.layer(layout, TypeParam::kDType);
    ASSERT_EQ(layer.out.h * layer.out.w, 1);
    typename TypeParam::Stored x[2] = {}, z[2], dx[2], dz[2] = {TypeParam::of(1), TypeParam::of(1)};
    uint8_t argmax[2];
    kernels::cpu::max_pool_forward(layer, x, z, argmax);
    kernels::cpu::max_pool_backward(layer, dz, argmax, dx);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(z[i], TypeParam::of(-HUGE_VAL));
      EXPECT_EQ(argmax[i], kNoPosition);
      EXPECT_EQ(dx[i], TypeParam::of(0));
    }
  }
}

TYPED_TEST(MaxPool, WithoutAnArgmaxTheValuesAreTheSame) {
  for (const Layout layout : kLayouts) {
    const MaxPoolLayer layer = PoolCase{2, 5, {9, 40}, square(3, 2, 1)}.layer(layout, TypeParam::kDType);
    Outcome<TypeParam> with(layer, 0), without(layer, 0);
    Guarded<typename TypeParam::Stored> x = with.dx;
    Random random(2);
    for (std::size_t i = 0; i < x.values().size(); ++i)
      x.data()[i] = TypeParam::of(std::floor(random.uniform(-99, 99)));
    kernels::cpu::max_pool_forward(layer, x.data(), with.z.data(), with.argmax.data());
    kernels::cpu::max_pool_forward(layer, x.data(), without.z.data(), nullptr);
    EXPECT_TRUE(same_bytes(without.z.values(), with.z.values()));
  }
}

TYPED_TEST(MaxPool, TheNumberOfThreadsDoesNotChangeAByte) {
  const int before = omp_get_max_threads();
  for (const Layout layout : kLayouts) {
    const MaxPoolLayer layer = PoolCase{3, 20, {50, 50}, square(3, 1, 1)}.layer(layout, TypeParam::kDType);
    Guarded<typename TypeParam::Stored> x(layer.planes() * 50 * 50, 0), dz = x;
    Random random(5);
    for (std::size_t i = 0; i < x.values().size(); ++i) {
      x.data()[i] = TypeParam::of(std::floor(random.uniform(-128, 128)) / 16);
      dz.data()[i] = TypeParam::of(std::floor(random.uniform(-128, 128)) / 64);
    }
    omp_set_num_threads(1);
    Outcome<TypeParam> one(layer, 0);
    kernels::cpu::max_pool_forward(layer, x.data(), one.z.data(), one.argmax.data());
    kernels::cpu::max_pool_backward(layer, dz.data(), one.argmax.data(), one.dx.data());
    for (const int threads : {2, 3, 7}) {
      omp_set_num_threads(threads);
      Outcome<TypeParam> some(layer, 0);
      kernels::cpu::max_pool_forward(layer, x.data(), some.z.data(), some.argmax.data());
      kernels::cpu::max_pool_backward(layer, dz.data(), some.argmax.data(), some.dx.data());
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
    const MaxPoolLayer layer = PoolCase{2, 3, {7, 9}, square(3, 2, 1)}.layer(layout, TypeParam::kDType);
    Outcome<TypeParam> outcome(layer, 0);
    for (int round = 0; round < 50; ++round) {
      for (std::size_t i = 0; i < outcome.argmax.values().size(); ++i)
        outcome.argmax.data()[i] = static_cast<uint8_t>(random.uniform(0, 256));
      kernels::cpu::max_pool_backward(layer, outcome.z.data(), outcome.argmax.data(), outcome.dx.data());
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
    const MaxPoolLayer layer = PoolCase{1, 256, {16, 16}, square(1, 1, 0)}.layer(layout, TypeParam::kDType);
    kernels::cpu::max_pool_forward(layer, all.data(), z.data(), argmax.data());
    kernels::cpu::max_pool_backward(layer, all.data(), argmax.data(), dx.data());
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

// Three windows whose maximum is the pixel in the middle.
TYPED_TEST(MaxPoolHalf, SumsOfGradientsAreRoundedOnceToNearestEven) {
  constexpr int64_t kRows = 64;
  const PoolWindow window{{1, 3}, {1, 1}, {0, 1}, {1, 1}};
  Random random(21);
  for (int exponent = 0; exponent < TypeParam::kExponents; ++exponent) {
    for (const Layout layout : kLayouts) {
      const MaxPoolLayer layer = PoolCase{1, 1, {kRows, 3}, window}.layer(layout, TypeParam::kDType);
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
      kernels::cpu::max_pool_backward(layer, dz.data(), argmax.data(), got.data());
      kernels::reference::max_pool_backward(layer, dz.data(), argmax.data(), want.data());
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
