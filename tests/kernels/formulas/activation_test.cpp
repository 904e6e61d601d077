// The activations of the vector kernels against their definitions in long double: values and slopes at every
// magnitude, and at the edges.
#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/base/random.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "tests/kernels/abn_case.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace palimpsest::testing {
namespace {

long double sigmoid(long double y) {
  return 1 / (1 + std::exp(-y));
}

long double softplus(long double y) {
  return std::max(y, 0.0L) + std::log1p(std::exp(-std::abs(y)));
}

long double definition(Activation activation, long double y) {
  const long double param = default_param(activation), twice_scale = 2 * std::sqrt(2 / std::acos(-1.0L));
  switch (activation) {
    case Activation::kLeakyReLU:
      return y >= 0 ? y : param * y;
    case Activation::kELU:
      return y >= 0 ? y : param * std::expm1(y);
    case Activation::kIdentity:
      return y;
    case Activation::kSigmoid:
      return sigmoid(y);
    case Activation::kTanh:
      return std::tanh(y);
    case Activation::kSoftplus:
      return softplus(y);
    case Activation::kReLU:
      return std::max(y, 0.0L);
    case Activation::kReLU6:
      return std::clamp(y, 0.0L, 6.0L);
    case Activation::kGELU:
      return y * std::erfc(-y / std::sqrt(2.0L)) / 2;
    case Activation::kGELUTanh:
      return y * sigmoid(twice_scale * (y + 0.044715L * y * y * y));
    case Activation::kSiLU:
      return y * sigmoid(y);
    case Activation::kHardSwish:
      return y * std::clamp(y + 3, 0.0L, 6.0L) / 6;
    case Activation::kMish:
      return y * std::tanh(softplus(y));
  }
  return 0;
}

// By differences over five points; NaN where one of them lies on the other side of a kink.
long double slope(Activation activation, long double y) {
  constexpr long double h = 0x1p-13L;
  for (const int kink : {-3, 0, 3, 6})
    if (std::abs(y - kink) <= 2 * h) return std::numeric_limits<long double>::quiet_NaN();
  const auto at = [&](int steps) { return definition(activation, y + steps * h); };
  return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h);
}

// By how much the error of the exponential's argument, which is rounded, grows on the way to the result.
double amplification(Activation activation, double y) {
  const bool squares = activation == Activation::kGELU || activation == Activation::kGELUTanh;
  return squares ? 1 + y * y : 1;
}

template <class T>
std::vector<T> forward(Activation activation, const std::vector<T>& y) {
  std::vector<T> z(y.size());
  const T zero = 0, one = 1;
  kernels::cpu::current_instruction_set().abn<T>().plane.apply(
      {1, 0, static_cast<int64_t>(y.size())}, {activation, default_param(activation)}, Saved::kOutput,
      {&zero, &one, &zero, &one, &zero}, {y.data(), {nullptr, false}, z.data(), nullptr},
      kernels::cpu::Stores::kCached);
  return z;
}

template <class T>
std::vector<T> derivative(Activation activation, const std::vector<T>& y) {
  std::vector<T> d(y.size());
  const std::vector<T> dz(y.size(), 1);
  const T zero = 0, one = 1;
  kernels::cpu::current_instruction_set().abn<T>().plane.backward(
      {1, 0, static_cast<int64_t>(y.size())}, {activation, default_param(activation)}, Saved::kPreActivation,
      /*frozen=*/true, {&zero, &zero, &zero, &one, &zero, &zero},
      {y.data(), {nullptr, false}, dz.data(), {nullptr, 0}}, {d.data(), nullptr, nullptr},
      kernels::cpu::Stores::kCached);
  return d;
}

template <class T>
class ActivationFormula : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ActivationFormula, Types, TypeName);

TYPED_TEST(ActivationFormula, ValuesAndSlopesAreThoseOfTheDefinition) {
  using T = TypeParam;
  constexpr double kEpsilon = std::numeric_limits<T>::epsilon();
  Random random(7);
  std::vector<T> y(40007);  // whole vectors, and some more values
  for (std::size_t i = 0; i < y.size(); ++i)
    y[i] =
        static_cast<T>(i % 2 ? random.uniform(-8, 8)
                             : (i % 4 ? 1 : -1) * std::exp(random.uniform(std::log(1e-12), std::log(80.0))));
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    SCOPED_TRACE(name);
    const std::vector<T> z = forward(activation, y), d = derivative(activation, y);
    double worst = 0, worst_at = 0, worst_slope = 0, worst_slope_at = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double at = static_cast<double>(y[i]);
      const auto want = static_cast<double>(definition(activation, at));
      const double error = std::abs(static_cast<double>(z[i]) - want) /
                           (kEpsilon * std::abs(want) * amplification(activation, at));
      if (std::abs(want) >= static_cast<double>(std::numeric_limits<T>::min()) && !(error <= worst))
        worst = error, worst_at = at;
      const auto want_slope = static_cast<double>(slope(activation, at));
      const double slope_error = std::abs(static_cast<double>(d[i]) - want_slope) /
                                 (kEpsilon * (1 + std::abs(at)) * amplification(activation, at));
      if (!std::isnan(want_slope) && !(slope_error <= worst_slope))
        worst_slope = slope_error, worst_slope_at = at;
    }
    EXPECT_LE(worst, kActivationUlp) << "z at y = " << worst_at;
    EXPECT_LE(worst_slope, kActivationUlp) << "slope at y = " << worst_slope_at;
  }
}

TYPED_TEST(ActivationFormula, SlopesOfASaturatedELUKeepTheirDigits) {
  using T = TypeParam;
  Random random(9);
  std::vector<T> y(4007);
  for (T& value : y) value = static_cast<T>(random.uniform(-80, 0));
  const std::vector<T> d = derivative(Activation::kELU, y);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double at = static_cast<double>(y[i]), want = default_param(Activation::kELU) * std::exp(at);
    ASSERT_NEAR(static_cast<double>(d[i]), want,
                kActivationUlp * std::numeric_limits<T>::epsilon() * (1 - at) * want)
        << "at y = " << at;
  }
}

TYPED_TEST(ActivationFormula, EdgesAreThoseOfTheDefinitionInEveryLane) {
  using T = TypeParam;
  constexpr T kTiny = std::numeric_limits<T>::denorm_min(), kInfinity = std::numeric_limits<T>::infinity();
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    for (const T value :
         {T(0), kTiny, -kTiny, T(1e6), T(-1e6), kInfinity, -kInfinity, std::numeric_limits<T>::quiet_NaN()}) {
      for (std::size_t lane = 0; lane < 19; ++lane) {  // the other lanes hold an ordinary value
        SCOPED_TRACE(::testing::Message() << name << " of " << value << " in lane " << lane);
        std::vector<T> y(19, T(0.5));
        y[lane] = value;
        const T z = forward(activation, y)[lane], d = derivative(activation, y)[lane];
        if (std::isfinite(value)) {
          const auto want = static_cast<double>(definition(activation, static_cast<long double>(value)));
          EXPECT_NEAR(static_cast<double>(z), want,
                      kActivationUlp * std::numeric_limits<T>::epsilon() * std::abs(want) +
                          static_cast<double>(kTiny) * (1 + std::abs(static_cast<double>(value))));
          EXPECT_TRUE(std::isfinite(d));
        } else if (std::isnan(value)) {
          EXPECT_TRUE(std::isnan(z));
        }
      }
    }
  }
}

TYPED_TEST(ActivationFormula, MishHasItsLimitsAtInfinity) {
  using T = TypeParam;
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  const std::vector<T> y(19, kInfinity), below(19, -kInfinity);
  EXPECT_EQ(forward(Activation::kMish, y), y);
  EXPECT_EQ(derivative(Activation::kMish, y), std::vector<T>(19, 1));
  EXPECT_EQ(forward(Activation::kMish, below), std::vector<T>(19, 0));
  EXPECT_EQ(derivative(Activation::kMish, below), std::vector<T>(19, 0));
}

}  // namespace
}  // namespace palimpsest::testing
