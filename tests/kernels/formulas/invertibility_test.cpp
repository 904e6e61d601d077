// Which channels can be recovered from z: the criterion against the error that recovering them really has.
#include "palimpsest/kernels/formulas/invertibility.h"
#include "palimpsest/base/random.h"
#include "tests/kernels/abn_case.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::InvertibilityCriterion;

/// The root mean square error of x-hat, recovered from z in storage S, over normal x-hat; each value counts
/// as much as it does in a gradient: by act'(y), as computed from z.
template <class S>
double recovery_error(Activation activation, double weight, double bias) {
  constexpr int64_t kCount = 4000;
  const double* xhat = normal_numbers(7, kCount);
  const kernels::Precision precision = kernels::precision_of<S>();
  double squares = 0, slopes = 0;
  kernels::dispatch_activation<double>(
      activation, {default_param(activation), precision}, [&]<class Act>(const Act& act) {
        for (int64_t i = 0; i < kCount; ++i) {
          const double y = weight * xhat[i] + bias;
          const double z = static_cast<double>(static_cast<S>(act.forward(y)));
          double found = std::numeric_limits<double>::quiet_NaN(), slope = act.derivative_at(y);
          if constexpr (kernels::Invertible<Act>) found = act.inverse(z), slope = act.derivative(z);
          if constexpr (kernels::InvertibleByBranch<Act>)
            found =
                kernels::recover<double>(act, precision, z, y > kernels::minimum_at<double>(activation)).y;
          const double error = slope * ((found - bias) / weight - xhat[i]);
          squares += error * error;
          slopes += slope * slope;
        }
      });
  return slopes > 0 ? std::sqrt(squares / slopes) : 0;
}

std::vector<Activation> recoverable_activations() {
  return activations_that([](Activation a) { return kernels::is_invertible(a) || kernels::has_branches(a); });
}

template <class S>
class Invertibility : public ::testing::Test {};
using Types = ::testing::Types<float, Float16, BFloat16>;
TYPED_TEST_SUITE(Invertibility, Types, TypeName);

TYPED_TEST(Invertibility, AcceptsChannelsWhoseErrorStaysWithinTheTolerance) {
  const DType storage = dtype_of<TypeParam>();
  const double tolerance = kernels::storage_error_of(storage).tolerance;
  for (const Activation activation : recoverable_activations()) {
    const InvertibilityCriterion criterion(activation, storage);
    const bool is_straight = activation == Activation::kLeakyReLU || activation == Activation::kIdentity;
    for (const double weight : {1e-4, 0.003, 0.05, 0.3, 1.0, 2.0, 4.0, 8.0, 20.0}) {
      for (const double bias : {-300.0, -40.0, -10.0, -4.0, -1.0, 0.0, 1.0, 4.0, 10.0, 40.0, 300.0}) {
        SCOPED_TRACE(::testing::Message() << kernels::kActivations.name(activation) << ", weight " << weight
                                          << ", bias " << bias << ", " << name_of(storage));
        const double error = recovery_error<TypeParam>(activation, weight, bias);
        EXPECT_EQ(criterion.is_invertible(weight, bias, 0), criterion.is_invertible(-weight, bias, 0));
        if (criterion.is_invertible(weight, bias, 0)) {
          EXPECT_LE(error, tolerance);
        } else if (is_straight) {
          EXPECT_GE(error, tolerance / kInvertibilityCaution);
        }
      }
    }
  }
}

/// The root mean square error of x-hat, recovered from z in storage S, over normal x-hat: each value counts the
/// same, as it does in dx, which has x-hat as a term.
template <class S>
double error_of_every_value(Activation activation, double weight, double bias) {
  constexpr int64_t kCount = 4000;
  const double* xhat = normal_numbers(7, kCount);
  double squares = 0;
  kernels::dispatch_activation<double>(
      activation, {default_param(activation), kernels::precision_of<S>()}, [&]<class Act>(const Act& act) {
        if constexpr (kernels::Invertible<Act>)
          for (int64_t i = 0; i < kCount; ++i) {
            const double z = static_cast<double>(static_cast<S>(act.forward(weight * xhat[i] + bias)));
            const double error = (act.inverse(z) - bias) / weight - xhat[i];
            squares += error * error;
          }
      });
  return std::sqrt(squares / kCount);
}

template <class S>
class Underflow : public ::testing::Test {};
using AllTypes = ::testing::Types<double, float, Float16, BFloat16>;
TYPED_TEST_SUITE(Underflow, AllTypes, TypeName);

TYPED_TEST(Underflow, RefusesChannelsWhoseZFallsBelowTheSmallest) {
  const DType storage = dtype_of<TypeParam>();
  const double tolerance = kernels::storage_error_of(storage).tolerance;
  for (const Activation activation : {Activation::kSoftplus, Activation::kSigmoid}) {
    const InvertibilityCriterion criterion(activation, storage);
    for (const double weight : {0.05, 0.3, 1.0, 2.0, 3.0, 6.0, 8.0, 12.0, 20.0, 40.0, 100.0, 300.0})
      for (const double bias : {-700.0, -300.0, -100.0, -85.0, -40.0, -20.0, -16.0, -12.0, -8.0, 0.0, 5.0})
        if (criterion.is_invertible(weight, bias, 0)) {
          EXPECT_LE(error_of_every_value<TypeParam>(activation, weight, bias), tolerance)
              << kernels::kActivations.name(activation) << ", weight " << weight << ", bias " << bias << ", "
              << name_of(storage);
        }
    for (const double bias : {0.0, -0.5, 0.5}) EXPECT_TRUE(criterion.is_invertible(1, bias, 0));
  }
}

TEST(InvertibilityCriterion, RefusesASoftplusWhoseZUnderflows) {
  struct Turn {
    DType storage;
    double bias, last, first;  // the weights between which a channel becomes non-invertible
  };
  for (const auto& [storage, bias, last, first] :
       {Turn{DType::f32, 0, 14.6, 14.7}, Turn{DType::f32, -8, 13.2, 13.4}, Turn{DType::f64, 0, 79.9, 80.1},
        Turn{DType::f16, 0, 6.5, 6.6}, Turn{DType::f16, -8, 2.7, 2.8}, Turn{DType::bf16, 0, 215, 216}}) {
    const InvertibilityCriterion criterion(Activation::kSoftplus, storage);
    for (const double sign : {1.0, -1.0}) {
      EXPECT_TRUE(criterion.is_invertible(sign * last, bias, 0)) << name_of(storage) << ", bias " << bias;
      EXPECT_FALSE(criterion.is_invertible(sign * first, bias, 0)) << name_of(storage) << ", bias " << bias;
    }
    EXPECT_FALSE(criterion.is_invertible(last, bias, first)) << "the residual spreads y, too";
  }
}

TEST(InvertibilityCriterion, RefusesAWeightOfZeroAndABiasOfSixtyWeights) {
  for (const Activation activation : {Activation::kIdentity, Activation::kLeakyReLU}) {
    for (const DType storage : {DType::f32, DType::f16, DType::bf16}) {
      const InvertibilityCriterion criterion(activation, storage);
      EXPECT_FALSE(criterion.is_invertible(0, 0, 0));
      for (const double weight : {-2.0, 1e-3, 0.5}) {
        EXPECT_TRUE(criterion.is_invertible(weight, 59.9 * weight, 0));
        EXPECT_FALSE(criterion.is_invertible(weight, 60.1 * weight, 0));
        EXPECT_FALSE(criterion.is_invertible(weight, -60.1 * weight, 0));
        EXPECT_TRUE(criterion.is_invertible(weight, 0, 14.9 * std::abs(weight)));
        EXPECT_FALSE(criterion.is_invertible(weight, 0, 15.1 * std::abs(weight)));
      }
    }
  }
}

TEST(InvertibilityCriterion, FollowsTheFormulasOfSaturation) {
  // eps exp(weight^2 - bias) = 64 eps |weight| at weight = 1, and so on.
  const double ln64 = std::log(64.0);
  const auto turns_at = [](Activation activation, double weight, double bias, double step) {
    const InvertibilityCriterion criterion(activation, DType::f32);
    return criterion.is_invertible(weight, bias - step, 0) &&
           !criterion.is_invertible(weight, bias + step, 0);
  };
  EXPECT_TRUE(turns_at(Activation::kELU, 1, 1 - ln64, -1e-6));
  EXPECT_TRUE(turns_at(Activation::kSigmoid, 1, ln64 - 1, 1e-6));
  EXPECT_TRUE(turns_at(Activation::kTanh, 0.5, (std::log(64 * 0.5 * 4) - 1) / 2, 1e-6));
  EXPECT_TRUE(turns_at(Activation::kTanh, 0.5, (1 - std::log(64 * 0.5 * 4)) / 2, -1e-6));
  EXPECT_TRUE(InvertibilityCriterion(Activation::kSoftplus, DType::f32).is_invertible(1.41 / 60, 0, 0));
  EXPECT_FALSE(InvertibilityCriterion(Activation::kSoftplus, DType::f32).is_invertible(1.39 / 64, 0, 0));
}

TEST(InvertibilityCriterion, LooksAStepAhead) {
  using kernels::Outlook;
  Random random(5);
  for (const Activation activation : recoverable_activations()) {
    const InvertibilityCriterion criterion(activation, DType::f32);
    for (int i = 0; i < 2000; ++i) {
      const double weight = random.uniform(-3, 3), bias = random.uniform(-80, 80), rms = random.uniform(0, 1);
      bool stays = true;
      for (const double w : {weight / 2, weight * 17 / 16})
        for (const double b : {bias * 15 / 16, bias * 17 / 16})
          stays = stays && criterion.is_invertible(w, b, rms);
      const bool now = criterion.is_invertible(weight, bias, rms);
      EXPECT_EQ(criterion.outlook(weight, bias, rms, true), !now    ? Outlook::kNonInvertible
                                                            : stays ? Outlook::kInvertible
                                                                    : Outlook::kNear);
      EXPECT_EQ(criterion.outlook(weight, bias, rms, false),
                now ? Outlook::kInvertible : Outlook::kNonInvertible);
    }
  }
  // A layer as it starts is not near, whatever its activation.
  for (const Activation activation : recoverable_activations())
    EXPECT_EQ(InvertibilityCriterion(activation, DType::f32).outlook(1, 0, 0, true), Outlook::kInvertible)
        << kernels::kActivations.name(activation);
}

}  // namespace
}  // namespace palimpsest::testing
