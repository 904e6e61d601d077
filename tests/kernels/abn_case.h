#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/activation.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "tests/support/grid.h"
#include "tests/support/line_allocator.h"

#include <cmath>
#include <cstdint>
#include <ostream>
#include <span>
#include <type_traits>
#include <vector>

namespace palimpsest::testing {

/// A buffer that begins on a cache line, or a few values behind one.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size, int64_t misaligned_by = 0)
      : begin_(misaligned_by), values_(size + misaligned_by) {}

  T* data() { return values_.data() + begin_; }
  std::span<const T> values() const { return {values_.data() + begin_, values_.size() - begin_}; }
  T& operator[](int64_t i) { return values_[begin_ + i]; }
  int64_t size() const { return static_cast<int64_t>(values_.size()) - begin_; }

 private:
  int64_t begin_ = 0;
  std::vector<T, LineAllocator<T>> values_;
};

inline double default_param(Activation activation) {
  return activation == Activation::kELU ? 1.0 : 0.01;
}

/// One test case of the layer; fields that a test does not set describe an ordinary layer.
struct AbnCase {
  Shape3 shape;
  Layout layout = Layout::kNCHW;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;
  Saved saved = Saved::kOutput;
  bool has_weight = true, has_bias = true;
  bool has_residual = false, relu_residual = false;
  double mean = 0.5;          ///< of x; its standard deviation is about 1
  double weight_scale = 1;    ///< |weight| is this times 0.5 to 1.5, every other one negative
  double bias_scale = 0.5;    ///< |bias| is up to this
  int64_t misaligned_by = 0;  ///< values
  uint64_t seed = 1;

  template <class T>
  kernels::AbnProblem problem() const {
    return {shape, layout, dtype_of<T>(), activation, activation_param, saved, relu_residual};
  }
  bool saves_aside() const { return kernels::saves_aside(saved); }
  bool makes_z_again() const { return is_before_activation(saved); }
};

inline std::ostream& operator<<(std::ostream& out, const AbnCase& c) {
  return out << "(" << c.shape.n << ", " << c.shape.c << ", " << c.shape.s << ") "
             << (c.layout == Layout::kNCHW ? "NCHW" : "channels-last") << " "
             << kernels::kActivations.name(c.activation) << ", saved " << static_cast<int>(c.saved)
             << (c.has_weight ? "" : ", no weight") << (c.has_bias ? "" : ", no bias")
             << (c.has_residual ? c.relu_residual ? ", relu(residual)" : ", residual" : "") << ", mean "
             << c.mean << ", weight " << c.weight_scale << ", bias " << c.bias_scale << ", misaligned by "
             << c.misaligned_by << ", seed " << c.seed;
}

/// `count` nearly normal numbers: each is the sum of 4 uniform ones, scaled to unit variance. They are kept
/// for the next call, as a test draws the same numbers for one layer after the other.
inline const double* normal_numbers(uint64_t seed, int64_t count) {
  static thread_local std::vector<double> numbers;
  static thread_local uint64_t drawn_from = 0;
  static thread_local Random random(0);
  if (numbers.empty() || drawn_from != seed) {
    numbers.clear();
    drawn_from = seed;
    random = Random(seed);
  }
  while (static_cast<int64_t>(numbers.size()) < count)
    numbers.push_back(1.7320508 *
                      (random.uniform() + random.uniform() + random.uniform() + random.uniform() - 2));
  return numbers.data();
}

/// The tensors of one layer, forward and backward. Inputs are rounded to `Rounding`, whatever T is: the f64
/// reference of these inputs is the truth for that storage type.
template <class T, class Rounding = T>
struct AbnTensors {
  using A = accumulate_t<T>;
  Buffer<T> x, residual, dz, z, saved_values, dx, dresidual, z_again;
  Buffer<A> weight, bias, sum_dy, sum_dy_xhat;
  Buffer<double> mean, var, inv_std;
  Buffer<uint8_t> branch;

  explicit AbnTensors(const AbnCase& c)
      : x(c.shape.elements(), c.misaligned_by),
        residual(c.has_residual ? c.shape.elements() : 0, c.misaligned_by),
        dz(c.shape.elements(), c.misaligned_by),
        z(c.shape.elements(), c.misaligned_by),
        saved_values(c.saves_aside() ? c.shape.elements() : 0, c.misaligned_by),
        dx(c.shape.elements(), c.misaligned_by),
        dresidual(c.has_residual ? c.shape.elements() : 0, c.misaligned_by),
        z_again(c.makes_z_again() ? c.shape.elements() : 0, c.misaligned_by),
        weight(c.shape.c),
        bias(c.shape.c),
        sum_dy(c.shape.c),
        sum_dy_xhat(c.shape.c),
        mean(c.shape.c),
        var(c.shape.c),
        inv_std(c.shape.c),
        branch(c.saved == Saved::kOutputBit ? kernels::branch_bytes(c.shape.elements()) : 0) {
    const int64_t drawn = x.size() + dz.size() + residual.size();
    const double* normal = normal_numbers(c.seed, drawn);
    for (int64_t i = 0; i < x.size(); ++i) x[i] = input(c.mean + *normal++);
    for (int64_t i = 0; i < dz.size(); ++i) dz[i] = input(*normal++);
    for (int64_t i = 0; i < residual.size(); ++i) residual[i] = input(*normal++);
    Random random(c.seed);
    random.skip(4 * static_cast<uint64_t>(drawn));
    for (int64_t i = 0; i < c.shape.c; ++i) {
      const double sign = i % 2 ? -1 : 1;
      weight[i] = static_cast<A>(static_cast<float>(sign * c.weight_scale * random.uniform(0.5, 1.5)));
      bias[i] = static_cast<A>(static_cast<float>(c.bias_scale * random.uniform(-1, 1)));
    }
  }

  /// `value` rounded to Rounding; to f32 for f64, so that both run on the same numbers.
  static T input(double value) {
    return static_cast<T>(
        static_cast<double>(static_cast<Rounding>(static_cast<double>(static_cast<float>(value)))));
  }

  kernels::AbnForward forward(const AbnCase& c) {
    return {.x = x.data(),
            .residual = c.has_residual ? residual.data() : nullptr,
            .weight = c.has_weight ? weight.data() : nullptr,
            .bias = c.has_bias ? bias.data() : nullptr,
            .z = z.data(),
            .saved_values = c.saves_aside() ? saved_values.data() : nullptr,
            .branch = branch.data(),
            .mean = mean.data(),
            .var = var.data(),
            .inv_std = inv_std.data()};
  }

  /// The saved values: a tensor of their own, or x, or z.
  T* saved_tensor(const AbnCase& c) {
    return c.saves_aside() ? saved_values.data() : c.saved == Saved::kInput ? x.data() : z.data();
  }

  kernels::AbnBackward backward(const AbnCase& c) {
    return {.saved_values = saved_tensor(c),
            .branch = branch.data(),
            .residual = c.has_residual ? residual.data() : nullptr,
            .dz = dz.data(),
            .weight = c.has_weight ? weight.data() : nullptr,
            .bias = c.has_bias ? bias.data() : nullptr,
            .mean = mean.data(),
            .inv_std = inv_std.data(),
            .sum_dy = sum_dy.data(),
            .sum_dy_xhat = sum_dy_xhat.data(),
            .dx = dx.data(),
            .dresidual = c.has_residual ? dresidual.data() : nullptr,
            .z = c.makes_z_again() ? z_again.data() : nullptr};
  }
};

constexpr double kEps = 1e-5;

/// Forward, then backward, by the CPU kernels.
template <class T, class Rounding>
void run_cpu(const AbnCase& c, AbnTensors<T, Rounding>& t) {
  kernels::cpu::abn_forward(c.problem<T>(), kEps, t.forward(c));
  kernels::cpu::abn_backward(c.problem<T>(), t.backward(c));
}

/// Runs the same problem by the reference.
template <class T, class Rounding>
void run_reference(const AbnCase& c, AbnTensors<T, Rounding>& t) {
  kernels::reference::abn_forward(c.problem<T>(), kEps, t.forward(c));
  kernels::reference::abn_backward(c.problem<T>(), t.backward(c));
}

}  // namespace palimpsest::testing
