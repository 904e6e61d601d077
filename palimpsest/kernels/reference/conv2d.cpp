#include "palimpsest/kernels/conv2d.h"

#include <vector>

// The truth of the tests: plain loops visit every product of the convolution once, add up in double, and
// round the result once.
namespace palimpsest::kernels::reference {
namespace {

/// Calls visit(index in x, index in w, index in y) for every product.
template <class Visit>
void for_products(const Conv2dProblem& problem, const Visit& visit) {
  for (int64_t n = 0; n < problem.n; ++n)
    for (int64_t oh = 0; oh < problem.out.h; ++oh)
      for (int64_t ow = 0; ow < problem.out.w; ++ow)
        for (int64_t ky = 0; ky < problem.kernel_size.h; ++ky)
          for (int64_t kx = 0; kx < problem.kernel_size.w; ++kx) {
            const int64_t ih = oh * problem.stride.h - problem.padding.h + ky * problem.dilation.h;
            const int64_t iw = ow * problem.stride.w - problem.padding.w + kx * problem.dilation.w;
            if (ih < 0 || ih >= problem.in.h || iw < 0 || iw >= problem.in.w) continue;
            const int64_t from = ((n * problem.in.h + ih) * problem.in.w + iw) * problem.c_in;
            const int64_t to = ((n * problem.out.h + oh) * problem.out.w + ow) * problem.c_out;
            for (int64_t o = 0; o < problem.c_out; ++o)
              for (int64_t i = 0; i < problem.group_in(); ++i)
                visit(
                    from + o / problem.group_out() * problem.group_in() + i,
                    ((o * problem.kernel_size.h + ky) * problem.kernel_size.w + kx) * problem.group_in() + i,
                    to + o);
          }
}

/// The value of x that the products read.
float read(const Conv2dProblem& problem, float x) {
  return problem.relu_x && x <= 0 ? 0 : x;
}

void round(const std::vector<double>& sums, float* result) {
  for (const double sum : sums) *result++ = static_cast<float>(sum);
}

std::vector<double> zeros(int64_t count) {
  return std::vector<double>(static_cast<std::size_t>(count));
}

}  // namespace

void conv2d_forward(const Conv2dProblem& problem, const float* x, const float* w, float* y) {
  auto sums = zeros(problem.n * problem.out.h * problem.out.w * problem.c_out);
  for_products(problem, [&](int64_t i, int64_t k, int64_t o) {
    sums[o] += double{read(problem, x[i])} * double{w[k]};
  });
  round(sums, y);
}

void conv2d_backward_input(const Conv2dProblem& problem, const float* dy, const float* w, const float* x,
                           float* dx) {
  auto sums = zeros(problem.n * problem.in.h * problem.in.w * problem.c_in);
  for_products(problem, [&](int64_t i, int64_t k, int64_t o) { sums[i] += double{dy[o]} * double{w[k]}; });
  for (std::size_t i = 0; problem.relu_x && i < sums.size(); ++i)
    if (x[i] <= 0) sums[i] = 0;
  round(sums, dx);
}

void conv2d_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw) {
  auto sums = zeros(problem.weights());
  for_products(problem, [&](int64_t i, int64_t k, int64_t o) {
    sums[k] += double{dy[o]} * double{read(problem, x[i])};
  });
  round(sums, dw);
}

}  // namespace palimpsest::kernels::reference
