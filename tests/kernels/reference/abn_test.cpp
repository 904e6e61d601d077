// The reference is the truth of the other tests, so it is held against the definition: central differences in
// double.
#include "tests/kernels/abn_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <vector>

namespace palimpsest::testing {
namespace {

// The loss whose gradient with respect to z is dz.
double loss(const AbnCase& c, AbnTensors<double>& t) {
  kernels::reference::abn_forward(c.problem<double>(), kEps, t.forward(c));
  double sum = 0;
  for (int64_t i = 0; i < t.z.size(); ++i) sum += t.z[i] * t.dz[i];
  return sum;
}

std::vector<double> numeric_gradient(const AbnCase& c, AbnTensors<double>& t, Buffer<double>& input) {
  std::vector<double> gradient(input.size());
  for (int64_t i = 0; i < input.size(); ++i) {
    const double at = input[i];
    input[i] = at + kNumericStep;
    const double above = loss(c, t);
    input[i] = at - kNumericStep;
    const double below = loss(c, t);
    input[i] = at;
    gradient[i] = (above - below) / (2 * kNumericStep);
  }
  return gradient;
}

TEST(Reference, GradientsEqualCentralDifferences) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    for (const Saved saved : kAllSaved) {
      if (!can_save(activation, saved)) continue;
      for (const int residual : {0, 1, 2}) {
        const AbnCase c{.shape = {3, 4, 5},
                        .layout = residual == 1 ? Layout::kChannelsLast : Layout::kNCHW,
                        .activation = activation,
                        .activation_param = 0.3,
                        .saved = saved,
                        .has_residual = residual > 0,
                        .relu_residual = residual == 2};
        SCOPED_TRACE(::testing::Message() << c);
        AbnTensors<double> t(c), probe(c);
        run_reference(c, t);
        const auto check = [&](const Buffer<double>& got, Buffer<double>& input, const char* what) {
          const std::vector<double> want = numeric_gradient(c, probe, input);
          EXPECT_TRUE(close(got.values(), std::span<const double>(want), kNumericGradient, c.seed)) << what;
        };
        check(t.dx, probe.x, "dx");
        check(t.sum_dy_xhat, probe.weight, "dweight");
        check(t.sum_dy, probe.bias, "dbias");
        check(t.dresidual, probe.residual, "dresidual");
      }
    }
  }
}

TEST(Reference, NormalizesToZeroMeanAndUnitVariance) {
  const AbnCase c{.shape = {5, 3, 40},
                  .activation = Activation::kIdentity,
                  .has_weight = false,
                  .has_bias = false,
                  .mean = 7};
  AbnTensors<double> t(c);
  run_reference(c, t);
  for (int64_t channel = 0; channel < c.shape.c; ++channel) {
    double sum = 0, squares = 0;
    for (int64_t n = 0; n < c.shape.n; ++n) {
      for (int64_t s = 0; s < c.shape.s; ++s) {
        const double z = t.z[(n * c.shape.c + channel) * c.shape.s + s];
        sum += z;
        squares += z * z;
      }
    }
    const double m = static_cast<double>(c.shape.per_channel());
    EXPECT_NEAR(sum / m, 0, tolerance(DType::f64).relative_l2);
    EXPECT_NEAR(squares / m, t.var[channel] / (t.var[channel] + kEps), tolerance(DType::f64).relative_l2);
  }
}

TEST(Reference, BothLayoutsAreTheSameMaths) {
  const AbnCase nchw{.shape = {2, 6, 15}};
  AbnCase last = nchw;
  last.layout = Layout::kChannelsLast;
  AbnTensors<double> a(nchw), b(last);
  const auto transposed = [&](int64_t n, int64_t c, int64_t s) { return (n * 15 + s) * 6 + c; };
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t c = 0; c < 6; ++c) {
      for (int64_t s = 0; s < 15; ++s) {
        b.x[transposed(n, c, s)] = a.x[(n * 6 + c) * 15 + s];
        b.dz[transposed(n, c, s)] = a.dz[(n * 6 + c) * 15 + s];
      }
    }
  }
  run_reference(nchw, a);
  run_reference(last, b);
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t c = 0; c < 6; ++c) {
      for (int64_t s = 0; s < 15; ++s) {
        EXPECT_EQ(b.z[transposed(n, c, s)], a.z[(n * 6 + c) * 15 + s]);
        EXPECT_EQ(b.dx[transposed(n, c, s)], a.dx[(n * 6 + c) * 15 + s]);
      }
    }
  }
}

}  // namespace
}  // namespace palimpsest::testing
