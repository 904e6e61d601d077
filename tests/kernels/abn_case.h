#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/abn.h"

#include <cmath>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// A buffer that may begin a few bytes off every vector boundary.
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
  std::vector<T> values_;
};

template <class T>
constexpr DType dtype_of() {
  return sizeof(T) == 8 ? DType::f64 : DType::f32;
}

/// What a test of the layer asks for; the fields that a test does not set are an ordinary layer.
struct AbnCase {
  Shape3 shape;
  Layout layout = Layout::kNCHW;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;
  bool has_weight = true, has_bias = true;
  bool keep_xhat = false;
  double mean = 0.5;          ///< of x; its standard deviation is about 1
  double weight_scale = 1;    ///< |weight| is this times 0.5 to 1.5, every other one negative
  double bias_scale = 0.5;    ///< |bias| is up to this
  int64_t misaligned_by = 0;  ///< values
  uint64_t seed = 1;

  template <class T>
  kernels::AbnLayer layer() const {
    return {shape, layout, dtype_of<T>(), activation, activation_param};
  }
};

inline std::ostream& operator<<(std::ostream& out, const AbnCase& c) {
  return out << "(" << c.shape.n << ", " << c.shape.c << ", " << c.shape.s << ") "
             << (c.layout == Layout::kNCHW ? "NCHW" : "channels-last") << " activation "
             << static_cast<int>(c.activation) << (c.has_weight ? "" : ", no weight")
             << (c.has_bias ? "" : ", no bias") << (c.keep_xhat ? ", xhat kept" : "") << ", mean " << c.mean
             << ", weight " << c.weight_scale << ", bias " << c.bias_scale << ", misaligned by "
             << c.misaligned_by << ", seed " << c.seed;
}

/// The tensors of one layer, forward and backward, with inputs that are the same numbers in f32 and in f64.
template <class T>
struct AbnTensors {
  Buffer<T> x, dz, z, xhat, dx;
  Buffer<T> weight, bias, mean, var, inv_std, sum_dy, sum_dy_xhat;

  explicit AbnTensors(const AbnCase& c)
      : x(c.shape.elements(), c.misaligned_by),
        dz(c.shape.elements(), c.misaligned_by),
        z(c.shape.elements(), c.misaligned_by),
        xhat(c.keep_xhat ? c.shape.elements() : 0, c.misaligned_by),
        dx(c.shape.elements(), c.misaligned_by),
        weight(c.shape.c),
        bias(c.shape.c),
        mean(c.shape.c),
        var(c.shape.c),
        inv_std(c.shape.c),
        sum_dy(c.shape.c),
        sum_dy_xhat(c.shape.c) {
    Random random(c.seed);
    // Rounded to f32 in both types: what the f64 reference then says is the truth for f32, too.
    const auto normal = [&] {  // near enough: the sum of 4 uniform numbers, scaled to unit variance
      return 1.7320508 * (random.uniform() + random.uniform() + random.uniform() + random.uniform() - 2);
    };
    for (int64_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(static_cast<float>(c.mean + normal()));
    for (int64_t i = 0; i < dz.size(); ++i) dz[i] = static_cast<T>(static_cast<float>(normal()));
    for (int64_t i = 0; i < c.shape.c; ++i) {
      const double sign = i % 2 ? -1 : 1;
      weight[i] = static_cast<T>(static_cast<float>(sign * c.weight_scale * random.uniform(0.5, 1.5)));
      bias[i] = static_cast<T>(static_cast<float>(c.bias_scale * random.uniform(-1, 1)));
    }
  }

  T* weight_or_null(const AbnCase& c) { return c.has_weight ? weight.data() : nullptr; }
  T* bias_or_null(const AbnCase& c) { return c.has_bias ? bias.data() : nullptr; }
  T* xhat_or_null(const AbnCase& c) { return c.keep_xhat ? xhat.data() : nullptr; }
};

constexpr double kEps = 1e-5;

/// Forward, then backward, by the CPU kernels.
template <class T>
void run_cpu(const AbnCase& c, AbnTensors<T>& t) {
  namespace cpu = kernels::cpu;
  cpu::abn_forward(c.layer<T>(), kEps, t.x.data(), t.weight_or_null(c), t.bias_or_null(c), t.z.data(),
                   t.xhat_or_null(c), t.mean.data(), t.var.data(), t.inv_std.data());
  cpu::abn_backward(c.layer<T>(), t.z.data(), t.xhat_or_null(c), t.dz.data(), t.weight_or_null(c),
                    t.bias_or_null(c), t.inv_std.data(), t.sum_dy.data(), t.sum_dy_xhat.data(), t.dx.data());
}

/// The same by the reference.
template <class T>
void run_reference(const AbnCase& c, AbnTensors<T>& t) {
  namespace reference = kernels::reference;
  reference::abn_forward(c.layer<T>(), kEps, t.x.data(), t.weight_or_null(c), t.bias_or_null(c), t.z.data(),
                         t.xhat_or_null(c), t.mean.data(), t.var.data(), t.inv_std.data());
  reference::abn_backward(c.layer<T>(), t.z.data(), t.xhat_or_null(c), t.dz.data(), t.weight_or_null(c),
                          t.bias_or_null(c), t.inv_std.data(), t.sum_dy.data(), t.sum_dy_xhat.data(),
                          t.dx.data());
}

}  // namespace palimpsest::testing
