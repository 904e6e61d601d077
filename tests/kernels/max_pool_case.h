#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/max_pool.h"
#include "tests/support/compare.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <ostream>
#include <span>
#include <vector>

namespace palimpsest::testing {

using kernels::kMaxPoolPositions;
using kernels::kNoPosition;
using kernels::MaxPoolProblem;
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

  MaxPoolProblem problem(Layout layout, DType dtype) const {
    const PoolWindow& p = window;
    return {n,
            c,
            in,
            {pooled_size(in.h, p.kernel_size.h, p.stride.h, p.padding.h, p.dilation.h, ceil_mode),
             pooled_size(in.w, p.kernel_size.w, p.stride.w, p.padding.w, p.dilation.w, ceil_mode)},
            window,
            layout,
            dtype};
  }
};

inline std::ostream& operator<<(std::ostream& out, const PoolCase& c) {
  const PoolWindow& p = c.window;
  return out << "(" << c.n << ", " << c.c << ", " << c.in.h << ", " << c.in.w << "), window "
             << p.kernel_size.h << "x" << p.kernel_size.w << ", stride " << p.stride.h << "x" << p.stride.w
             << ", padding " << p.padding.h << "x" << p.padding.w << ", dilation " << p.dilation.h << "x"
             << p.dilation.w << (c.ceil_mode ? ", ceil mode" : "");
}

inline PoolWindow square(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation = 1) {
  return {{kernel, kernel}, {stride, stride}, {padding, padding}, {dilation, dilation}};
}

/// Windows of every kind over rows around the vector width, and around the number of channels in a vector.
inline std::vector<PoolCase> pool_cases() {
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

/// Values between guards, which no kernel may write.
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

  Outcome(const MaxPoolProblem& problem, int64_t misaligned_by)
      : z(problem.planes() * problem.out.h * problem.out.w, misaligned_by),
        dx(problem.planes() * problem.in.h * problem.in.w, misaligned_by),
        argmax(problem.planes() * problem.out.h * problem.out.w, misaligned_by) {}
};

/// Expects the same bytes of `forward` and `backward` as of the reference.
template <class Type, class Draw, class Forward, class Backward>
void expect_reference(const PoolCase& c, Layout layout, int64_t misaligned_by, const Draw& draw,
                      const Forward& forward, const Backward& backward) {
  const MaxPoolProblem problem = c.problem(layout, Type::kDType);
  Outcome<Type> got(problem, misaligned_by), want(problem, misaligned_by);
  Guarded<typename Type::Stored> x = got.dx, dz = got.z;
  Random random(11);
  for (std::size_t i = 0; i < x.values().size(); ++i) x.data()[i] = Type::of(draw(random));
  // Eighths: their sums are exact in every type, so the order and the type of additions play no part.
  for (std::size_t i = 0; i < dz.values().size(); ++i)
    dz.data()[i] = Type::of(std::floor(random.uniform(-8, 8)) / 8);
  forward(problem, x.data(), got.z.data(), got.argmax.data());
  backward(problem, dz.data(), got.argmax.data(), got.dx.data());
  kernels::reference::max_pool_forward(problem, x.data(), want.z.data(), want.argmax.data());
  kernels::reference::max_pool_backward(problem, dz.data(), want.argmax.data(), want.dx.data());
  const auto where = ::testing::Message() << c << (layout == Layout::kNCHW ? ", NCHW" : ", channels-last")
                                          << ", misaligned by " << misaligned_by << ", seed 11";
  EXPECT_TRUE(same_bytes(got.z.values(), want.z.values())) << where;
  EXPECT_TRUE(same_bytes(got.argmax.values(), want.argmax.values())) << where;
  EXPECT_TRUE(same_bytes(got.dx.values(), want.dx.values())) << where;
  EXPECT_TRUE(got.z.guards_hold() && got.argmax.guards_hold() && got.dx.guards_hold()) << where;
}

/// Forward with somewhere to write the places, and without; expects the same values.
template <class Type, class Forward>
void expect_same_without_argmax(const MaxPoolProblem& problem, const Forward& forward) {
  Outcome<Type> with(problem, 0), without(problem, 0);
  Guarded<typename Type::Stored> x = with.dx;
  Random random(2);
  for (std::size_t i = 0; i < x.values().size(); ++i)
    x.data()[i] = Type::of(std::floor(random.uniform(-99, 99)));
  forward(problem, x.data(), with.z.data(), with.argmax.data());
  forward(problem, x.data(), without.z.data(), nullptr);
  EXPECT_TRUE(same_bytes(without.z.values(), with.z.values()));
}

}  // namespace palimpsest::testing
