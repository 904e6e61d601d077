#pragma once

#include "palimpsest/kernels/dense_block.h"

#include "palimpsest/base/random.h"
#include "tests/kernels/abn_case.h"

#include <cstdint>
#include <limits>
#include <ostream>
#include <vector>

namespace palimpsest::testing {

using kernels::DenseProductProblem;

struct DenseCase {
  int64_t n, s, c, total, out;
  Layout layout = Layout::kNCHW;
  Activation activation = Activation::kReLU;
  double mean = 0.5;
  int64_t misaligned_by = 0;
  uint64_t seed = 1;

  template <class S>
  DenseProductProblem problem() const {
    return {n, s, c, total, out, layout, dtype_of<S>(), activation, 0.01};
  }
};

inline std::ostream& operator<<(std::ostream& out, const DenseCase& c) {
  return out << "(" << c.n << ", " << c.c << " of " << c.total << ", " << c.s << ") to " << c.out
             << (c.layout == Layout::kNCHW ? " NCHW " : " channels-last ")
             << kernels::kActivations.name(c.activation) << ", mean " << c.mean << ", misaligned by "
             << c.misaligned_by;
}

/// The tensors of one layer, rounded to Rounding. Channels that the layer does not read are NaN in x, and 3
/// in the gradient.
template <class S, class Rounding = S>
struct DenseTensors {
  using T = accumulate_t<S>;
  Buffer<S> x, w, h, dh;
  Buffer<T> gradient, dw;
  std::vector<double> mean, scale, shift, per_dy, sum_dy, sum_dy_x;

  explicit DenseTensors(const DenseCase& c)
      : x(c.n * c.total * c.s, c.misaligned_by),
        w(c.out * c.c, c.misaligned_by),
        h(c.n * c.out * c.s, c.misaligned_by),
        dh(c.n * c.out * c.s, c.misaligned_by),
        gradient(c.n * c.total * c.s, c.misaligned_by),
        dw(c.out * c.c, c.misaligned_by),
        sum_dy(c.c),
        sum_dy_x(c.c) {
    Random random(c.seed);
    const auto input = [&](double low, double high) {
      return static_cast<S>(static_cast<double>(
          static_cast<Rounding>(static_cast<double>(static_cast<float>(random.uniform(low, high))))));
    };
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t channel = c.layout == Layout::kNCHW ? i / c.s % c.total : i % c.total;
      const S value = input(c.mean - 2, c.mean + 2);
      x[i] = channel < c.c ? value : static_cast<S>(std::numeric_limits<double>::quiet_NaN());
      gradient[i] = channel < c.c ? static_cast<T>(static_cast<float>(random.uniform(-1, 1))) : T(3);
    }
    for (int64_t i = 0; i < w.size(); ++i) w[i] = input(-1, 1);
    for (int64_t i = 0; i < dh.size(); ++i) dh[i] = input(-1, 1);
    for (int64_t i = 0; i < c.c; ++i) {
      mean.push_back(c.mean + random.uniform(-0.1, 0.1));
      scale.push_back(random.uniform(0.5, 1.5) * (i % 3 ? 1 : -1));
      shift.push_back(random.uniform(-0.5, 0.5));
      per_dy.push_back(random.uniform(-1, 1));
    }
  }

  kernels::DenseNormalization norm() const { return {mean.data(), scale.data(), shift.data()}; }
  kernels::DenseProductBackward backward() {
    return {x.data(),        w.data(),  dh.data(),     per_dy.data(),
            gradient.data(), dw.data(), sum_dy.data(), sum_dy_x.data()};
  }
};

}  // namespace palimpsest::testing
