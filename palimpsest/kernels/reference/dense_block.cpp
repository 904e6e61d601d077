#include "palimpsest/kernels/dense_block.h"

#include <vector>

// The truth of the tests: one loop a formula, in double, rounded once at the store.
namespace palimpsest::kernels::reference {
namespace {

int64_t at(Layout layout, int64_t channels, int64_t pixels, int64_t n, int64_t c, int64_t s) {
  return layout == Layout::kNCHW ? (n * channels + c) * pixels + s : (n * pixels + s) * channels + c;
}

/// What the layer makes of one value of x.
class Read {
 public:
  Read(const DenseProductProblem& layer, const DenseNormalization& norm) : l_(layer), norm_(norm) {}

  double slope() const {
    return l_.activation == Activation::kReLU        ? 0
           : l_.activation == Activation::kLeakyReLU ? l_.activation_param
                                                     : 1;
  }
  double y(int64_t c, double x) const { return (x - norm_.mean[c]) * norm_.scale[c] + norm_.shift[c]; }
  double z(int64_t c, double x) const {
    const double v = y(c, x);
    return v > 0 ? v : (slope() == 0 ? 0 : v * slope());
  }
  double derivative(int64_t c, double x) const { return y(c, x) > 0 ? 1 : slope(); }

 private:
  const DenseProductProblem& l_;
  const DenseNormalization& norm_;
};

template <class Visit>
void for_pixels(int64_t n, int64_t s, const Visit& visit) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t p = 0; p < s; ++p) visit(i, p);
}

}  // namespace

void dense_product(const DenseProductProblem& l, const DenseNormalization& norm, const void* x, const void* w,
                   void* h) {
  dispatch_float(l.dtype, [&]<class S>() {
    const Read read(l, norm);
    const S *from = static_cast<const S*>(x), *weight = static_cast<const S*>(w);
    for_pixels(l.n, l.s, [&](int64_t n, int64_t s) {
      for (int64_t o = 0; o < l.out; ++o) {
        double sum = 0;
        for (int64_t c = 0; c < l.c; ++c)
          sum += static_cast<double>(weight[o * l.c + c]) *
                 read.z(c, static_cast<double>(from[at(l.layout, l.total, l.s, n, c, s)]));
        static_cast<S*>(h)[at(l.layout, l.out, l.s, n, o, s)] = static_cast<S>(sum);
      }
    });
  });
}

void dense_product_backward(const DenseProductProblem& l, const DenseNormalization& norm,
                            const DenseProductBackward& t) {
  dispatch_float(l.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const Read read(l, norm);
    const S *from = static_cast<const S*>(t.x), *weight = static_cast<const S*>(t.w),
            *dh = static_cast<const S*>(t.dh);
    for (int64_t c = 0; c < l.c; ++c) {
      double sum_dy = 0, sum_dy_x = 0;
      std::vector<double> dw(static_cast<std::size_t>(l.out));
      for_pixels(l.n, l.s, [&](int64_t n, int64_t s) {
        const int64_t i = at(l.layout, l.total, l.s, n, c, s);
        const double x = static_cast<double>(from[i]);
        double dz = 0;
        for (int64_t o = 0; o < l.out; ++o) {
          const double d = static_cast<double>(dh[at(l.layout, l.out, l.s, n, o, s)]);
          dz += d * static_cast<double>(weight[o * l.c + c]);
          dw[static_cast<std::size_t>(o)] += d * read.z(c, x);
        }
        const double dy = dz * read.derivative(c, x);
        sum_dy += dy;
        sum_dy_x += dy * (x - norm.mean[c]);
        if (t.gradient) {
          T& g = static_cast<T*>(t.gradient)[i];
          g = static_cast<T>(static_cast<double>(g) + t.per_dy[c] * dy);
        }
      });
      if (t.sum_dy) t.sum_dy[c] = sum_dy, t.sum_dy_x[c] = sum_dy_x;
      if (t.dw)
        for (int64_t o = 0; o < l.out; ++o)
          static_cast<T*>(t.dw)[o * l.c + c] = static_cast<T>(dw[static_cast<std::size_t>(o)]);
    }
  });
}

void dense_feature_gradient(const DenseFeatureProblem& f, const DenseCorrection& k, const void* x,
                            const void* gradient, void* df) {
  dispatch_float(f.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    for_pixels(f.n, f.s, [&](int64_t n, int64_t s) {
      for (int64_t j = 0; j < f.count; ++j) {
        const int64_t i = at(f.layout, f.total, f.s, n, f.first + j, s);
        const double deviation = static_cast<double>(static_cast<const S*>(x)[i]) - k.mean[j];
        static_cast<S*>(df)[at(f.layout, f.count, f.s, n, j, s)] =
            static_cast<S>(static_cast<double>(static_cast<const T*>(gradient)[i]) - k.constant[j] -
                           k.per_deviation[j] * deviation);
      }
    });
  });
}

}  // namespace palimpsest::kernels::reference
