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

inline constexpr kernels::Conv2dPass kConv2dPasses[] = {
    kernels::Conv2dPass::kForward, kernels::Conv2dPass::kBackwardInput, kernels::Conv2dPass::kBackwardWeight};

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

/// Random tensors of a problem: the arguments of all three passes.
struct Conv2dTensors {
  GuardedFloats x, w, dy;

  Conv2dTensors(const kernels::Conv2dProblem& p, uint64_t seed)
      : x(p.n * p.in.h * p.in.w * p.c_in, Random::stream(seed, 0)),
        w(p.weights(), Random::stream(seed, 1)),
        dy(p.n * p.out.h * p.out.w * p.c_out, Random::stream(seed, 2)) {}

  int64_t result_size(kernels::Conv2dPass pass) const {
    using enum kernels::Conv2dPass;
    return static_cast<int64_t>((pass == kForward ? dy : pass == kBackwardInput ? x : w).span().size());
  }
};

/// Returns the reference's result of a pass.
inline GuardedFloats conv2d_reference(const kernels::Conv2dProblem& problem, kernels::Conv2dPass pass,
                                      const Conv2dTensors& t) {
  GuardedFloats result(t.result_size(pass));
  switch (pass) {
    case kernels::Conv2dPass::kForward:
      kernels::reference::conv2d_forward(problem, t.x.data(), t.w.data(), result.data());
      break;
    case kernels::Conv2dPass::kBackwardInput:
      kernels::reference::conv2d_backward_input(problem, t.dy.data(), t.w.data(), t.x.data(), result.data());
      break;
    case kernels::Conv2dPass::kBackwardWeight:
      kernels::reference::conv2d_backward_weight(problem, t.x.data(), t.dy.data(), result.data());
      break;
  }
  return result;
}

}  // namespace palimpsest::testing
