#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/conv2d.h"

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

/// Shared by the tests of convolutions.
namespace palimpsest::kernels {

inline std::ostream& operator<<(std::ostream& out, const Conv2dProblem& problem) {
  const auto pair = [](Pair2 p) { return std::to_string(p.h) + "x" + std::to_string(p.w); };
  return out << "(" << problem.n << ", " << problem.c_in << ", " << pair(problem.in) << ") to "
             << problem.c_out << " in " << problem.groups << " groups, window " << pair(problem.kernel_size)
             << ", stride " << pair(problem.stride) << ", padding " << pair(problem.padding) << ", dilation "
             << pair(problem.dilation);
}

}  // namespace palimpsest::kernels

namespace palimpsest::testing {

/// The problem of an input and a window; `out` follows.
inline kernels::Conv2dProblem conv2d_problem(int64_t n, int64_t c_in, int64_t c_out, int64_t groups, Pair2 in,
                                             Pair2 kernel_size, Pair2 stride = {1, 1}, Pair2 padding = {0, 0},
                                             Pair2 dilation = {1, 1}) {
  using kernels::convolved_size;
  return {n,
          c_in,
          c_out,
          groups,
          in,
          {convolved_size(in.h, kernel_size.h, stride.h, padding.h, dilation.h),
           convolved_size(in.w, kernel_size.w, stride.w, padding.w, dilation.w)},
          kernel_size,
          stride,
          padding,
          dilation};
}

/// Floats off every vector's boundary, between guards that a kernel must leave alone.
class GuardedFloats {
 public:
  explicit GuardedFloats(int64_t count, float fill = 0)
      : values_(static_cast<std::size_t>(count) + 2 * kGuard, kGuardValue) {
    std::fill(values_.begin() + kGuard, values_.end() - kGuard, fill);
  }
  /// Uniform in [-1, 1).
  GuardedFloats(int64_t count, Random random) : GuardedFloats(count) {
    for (float& v : span()) v = static_cast<float>(random.uniform(-1, 1));
  }

  float* data() { return values_.data() + kGuard; }
  const float* data() const { return values_.data() + kGuard; }
  std::span<float> span() { return {data(), values_.size() - 2 * kGuard}; }
  std::span<const float> span() const { return {data(), values_.size() - 2 * kGuard}; }
  bool guards_hold() const {
    const auto whole = [](float v) { return v == kGuardValue; };
    return std::all_of(values_.begin(), values_.begin() + kGuard, whole) &&
           std::all_of(values_.end() - kGuard, values_.end(), whole);
  }

 private:
  static constexpr int64_t kGuard = 33;  // odd, and more than two of the widest vectors
  static constexpr float kGuardValue = 12345;
  std::vector<float> values_;
};

}  // namespace palimpsest::testing
