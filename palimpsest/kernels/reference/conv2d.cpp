#include "palimpsest/kernels/conv2d.h"

#include <vector>

// The truth of the tests: every product of the convolution is visited once, in plain loops, and added up in
// double; what is asked for is rounded once.
namespace palimpsest::kernels::reference {
namespace {

/// visit(x's index, w's index, y's index) for every product.
template <class Visit>
void for_products(const Conv2dProblem& l, const Visit& visit) {
  for (int64_t n = 0; n < l.n; ++n)
    for (int64_t oh = 0; oh < l.out.h; ++oh)
      for (int64_t ow = 0; ow < l.out.w; ++ow)
        for (int64_t ky = 0; ky < l.kernel_size.h; ++ky)
          for (int64_t kx = 0; kx < l.kernel_size.w; ++kx) {
            const int64_t ih = oh * l.stride.h - l.padding.h + ky * l.dilation.h;
            const int64_t iw = ow * l.stride.w - l.padding.w + kx * l.dilation.w;
            if (ih < 0 || ih >= l.in.h || iw < 0 || iw >= l.in.w) continue;
            const int64_t from = ((n * l.in.h + ih) * l.in.w + iw) * l.c_in;
            const int64_t to = ((n * l.out.h + oh) * l.out.w + ow) * l.c_out;
            for (int64_t o = 0; o < l.c_out; ++o)
              for (int64_t i = 0; i < l.group_in(); ++i)
                visit(from + o / l.group_out() * l.group_in() + i,
                      ((o * l.kernel_size.h + ky) * l.kernel_size.w + kx) * l.group_in() + i, to + o);
          }
}

void round(const std::vector<double>& sums, float* result) {
  for (const double sum : sums) *result++ = static_cast<float>(sum);
}

std::vector<double> zeros(int64_t count) {
  return std::vector<double>(static_cast<std::size_t>(count));
}

}  // namespace

void conv2d_forward(const Conv2dProblem& l, const float* x, const float* w, float* y) {
  auto sums = zeros(l.n * l.out.h * l.out.w * l.c_out);
  for_products(l, [&](int64_t i, int64_t k, int64_t o) { sums[o] += double{x[i]} * double{w[k]}; });
  round(sums, y);
}

void conv2d_backward_input(const Conv2dProblem& l, const float* dy, const float* w, float* dx) {
  auto sums = zeros(l.n * l.in.h * l.in.w * l.c_in);
  for_products(l, [&](int64_t i, int64_t k, int64_t o) { sums[i] += double{dy[o]} * double{w[k]}; });
  round(sums, dx);
}

void conv2d_backward_weight(const Conv2dProblem& l, const float* x, const float* dy, float* dw) {
  auto sums = zeros(l.weights());
  for_products(l, [&](int64_t i, int64_t k, int64_t o) { sums[k] += double{dy[o]} * double{x[i]}; });
  round(sums, dw);
}

}  // namespace palimpsest::kernels::reference
