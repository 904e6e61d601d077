#include "palimpsest/kernels/dense_block.h"

#include <vector>

// The truth of the tests: one loop per formula, in double, rounded once at the store.
namespace palimpsest::kernels::reference {
namespace {

int64_t at(Layout layout, int64_t channels, int64_t pixels, int64_t n, int64_t c, int64_t s) {
  return layout == Layout::kNCHW ? (n * channels + c) * pixels + s : (n * pixels + s) * channels + c;
}

/// Normalization and activation of one value of x.
class Read {
 public:
  Read(const DenseProductProblem& problem, const DenseNormalization& norm) : problem_(problem), norm_(norm) {}

  double slope() const {
    return problem_.activation == Activation::kReLU        ? 0
           : problem_.activation == Activation::kLeakyReLU ? problem_.activation_param
                                                           : 1;
  }
  double y(int64_t c, double x) const { return (x - norm_.mean[c]) * norm_.scale[c] + norm_.shift[c]; }
  double z(int64_t c, double x) const {
    const double v = y(c, x);
    return v <= 0 ? (slope() == 0 ? 0 : v * slope()) : v;  // NaN stays NaN
  }
  double derivative(int64_t c, double x) const { return y(c, x) <= 0 ? slope() : 1; }

 private:
  const DenseProductProblem& problem_;
  const DenseNormalization& norm_;
};

template <class Visit>
void for_pixels(int64_t n, int64_t s, const Visit& visit) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < s; ++p) visit(i, p);
}

}  // namespace

void dense_product(const DenseProductProblem& problem, const DenseNormalization& norm, const void* x,
                   const void* w, void* h) {
  dispatch_float(problem.dtype, [&]<class S>() {
    const Read read(problem, norm);
    const S *from = static_cast<const S*>(x), *weight = static_cast<const S*>(w);
    for_pixels(problem.n, problem.s, [&](int64_t n, int64_t s) {
      for (int64_t o = 0; o < problem.out; ++o) {
        double sum = 0;
        for (int64_t c = 0; c < problem.c; ++c)
          sum += static_cast<double>(weight[o * problem.c + c]) *
                 read.z(c, static_cast<double>(from[at(problem.layout, problem.total, problem.s, n, c, s)]));
        static_cast<S*>(h)[at(problem.layout, problem.out, problem.s, n, o, s)] = static_cast<S>(sum);
      }
    });
  });
}

void dense_product_backward(const DenseProductProblem& problem, const DenseNormalization& norm,
                            const DenseProductBackward& backward) {
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const Read read(problem, norm);
    const S *from = static_cast<const S*>(backward.x), *weight = static_cast<const S*>(backward.w),
            *dh = static_cast<const S*>(backward.dh);
    for (int64_t c = 0; c < problem.c; ++c) {
      double sum_dy = 0, sum_dy_x = 0;
      std::vector<double> dw(static_cast<std::size_t>(problem.out));
      for_pixels(problem.n, problem.s, [&](int64_t n, int64_t s) {
        const int64_t i = at(problem.layout, problem.total, problem.s, n, c, s);
        const double x = static_cast<double>(from[i]);
        double dz = 0;
        for (int64_t o = 0; o < problem.out; ++o) {
          const double d = static_cast<double>(dh[at(problem.layout, problem.out, problem.s, n, o, s)]);
          dz += d * static_cast<double>(weight[o * problem.c + c]);
          dw[static_cast<std::size_t>(o)] += d * read.z(c, x);
        }
        const double dy = dz * read.derivative(c, x);
        sum_dy += dy;
        sum_dy_x += dy * (x - norm.mean[c]);
        if (backward.gradient) {
          T& g = static_cast<T*>(backward.gradient)[i];
          g = static_cast<T>(static_cast<double>(g) + backward.per_dy[c] * dy);
        }
      });
      if (backward.sum_dy) backward.sum_dy[c] = sum_dy, backward.sum_dy_x[c] = sum_dy_x;
      if (backward.dw)
        for (int64_t o = 0; o < problem.out; ++o)
          static_cast<T*>(backward.dw)[o * problem.c + c] = static_cast<T>(dw[static_cast<std::size_t>(o)]);
    }
  });
}

void dense_feature_gradient(const DenseFeatureProblem& problem, const DenseCorrection& correction,
                            const void* x, const void* gradient, void* df) {
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    for_pixels(problem.n, problem.s, [&](int64_t n, int64_t s) {
      for (int64_t j = 0; j < problem.count; ++j) {
        const int64_t i = at(problem.layout, problem.total, problem.s, n, problem.first + j, s);
        const double deviation = static_cast<double>(static_cast<const S*>(x)[i]) - correction.mean[j];
        static_cast<S*>(df)[at(problem.layout, problem.count, problem.s, n, j, s)] =
            static_cast<S>(static_cast<double>(static_cast<const T*>(gradient)[i]) - correction.constant[j] -
                           correction.per_deviation[j] * deviation);
      }
    });
  });
}

}  // namespace palimpsest::kernels::reference
