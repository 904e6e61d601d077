// The CPU kernels against the reference, which runs in f64 on the same numbers: over the grid of dtypes,
// layouts, activations, sizes around a vector's width, and starts off its boundary.
#include "tests/kernels/abn_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

namespace palimpsest::testing {
namespace {

// Every output of forward and backward against the f64 truth.
template <class T>
void expect_right(const AbnCase& c) {
  SCOPED_TRACE(::testing::Message() << (sizeof(T) == 8 ? "f64 " : "f32 ") << c);
  AbnTensors<T> got(c);
  AbnTensors<double> want(c);
  run_cpu(c, got);
  run_reference(c, want);
  const Tolerance limit = tolerance(dtype_of<T>());
  EXPECT_TRUE(close(got.z.values(), want.z.values(), limit, c.seed)) << "z";
  EXPECT_TRUE(close(got.var.values(), want.var.values(), limit, c.seed)) << "var";
  EXPECT_TRUE(close(got.inv_std.values(), want.inv_std.values(), limit, c.seed)) << "inv_std";
  EXPECT_TRUE(close(got.dx.values(), want.dx.values(), limit, c.seed)) << "dx";
  EXPECT_TRUE(close(got.sum_dy.values(), want.sum_dy.values(), limit, c.seed)) << "sum_dy";
  EXPECT_TRUE(close(got.sum_dy_xhat.values(), want.sum_dy_xhat.values(), limit, c.seed)) << "sum_dy_xhat";
  if (c.keep_xhat) {
    EXPECT_TRUE(close(got.xhat.values(), want.xhat.values(), limit, c.seed)) << "xhat";
  }
  // A mean may be as small as it likes against the values it is taken over, so it is held against their
  // spread.
  for (int64_t i = 0; i < c.shape.c; ++i)
    EXPECT_NEAR(got.mean[i], want.mean[i],
                limit.relative_l2 * (std::sqrt(want.var[i]) + std::abs(want.mean[i])))
        << "mean of channel " << i;
}

const Layout kLayouts[] = {Layout::kNCHW, Layout::kChannelsLast};
const Activation kActivations[] = {Activation::kLeakyReLU, Activation::kELU, Activation::kIdentity};
double param_of(Activation activation) {
  return activation == Activation::kELU ? 1.0 : 0.01;
}

template <class T>
class Abn : public ::testing::Test {
 protected:
  // `body` with every layout and activation filled in.
  template <class Body>
  static void for_each_kind(AbnCase c, const Body& body) {
    for (const Layout layout : kLayouts) {
      for (const Activation activation : kActivations) {
        c.layout = layout;
        c.activation = activation;
        c.activation_param = param_of(activation);
        body(c);
      }
    }
  }
};

struct TypeName {
  template <class T>
  static std::string GetName(int) {
    return sizeof(T) == 8 ? "f64" : "f32";
  }
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Abn, Types, TypeName);

// Never fewer than 30 values a channel: of 2, say, dx is zero but for eps, and all that is left of it is
// rounding.

TYPED_TEST(Abn, EqualsTheReferenceForSizesAroundAVector) {
  for (const int64_t s : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 63, 64, 65, 1000})
    for (const int64_t c : {5, 32})
      this->for_each_kind({.shape = {s < 10 ? 31 : 3, c, s}},
                          [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceForChannelsAroundAVector) {
  for (const int64_t c : {2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 511, 512, 513, 1000})
    for (const int64_t s : {1, 9})
      this->for_each_kind({.shape = {s == 1 ? 31 : 4, c, s}},
                          [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceForOneImageOneChannelOnePixel) {
  for (const Shape3 shape : {Shape3{1, 1, 40}, Shape3{40, 1, 1}, Shape3{1, 7, 50}, Shape3{300, 40, 1}})
    this->for_each_kind({.shape = shape}, [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceOffEveryVectorBoundary) {
  for (const int64_t misaligned_by : {1, 3, 7, 15})
    for (const Shape3 shape : {Shape3{2, 17, 33}, Shape3{2, 16, 64}, Shape3{3, 40, 49}})
      this->for_each_kind({.shape = shape, .misaligned_by = misaligned_by},
                          [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceWhereATensorIsCutIntoManyPieces) {
  // Many segments by image, by pixel, and of rows; many panels; chunks that end in the middle.
  for (const Shape3 shape :
       {Shape3{40, 2, 3600}, Shape3{1, 1, 150001}, Shape3{3, 520, 200}, Shape3{2, 40, 2000}})
    this->for_each_kind({.shape = shape}, [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceWithoutWeightOrBias) {
  for (const bool has_weight : {false, true})
    this->for_each_kind({.shape = {3, 20, 21}, .has_weight = has_weight, .has_bias = false},
                        [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceWhereXhatIsKeptForATinyWeight) {
  for (const Shape3 shape : {Shape3{3, 20, 33}, Shape3{4, 33, 9}})
    this->for_each_kind({.shape = shape, .keep_xhat = true, .weight_scale = 1e-6},
                        [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, LosesNoDigitsWhereTheMeanIsFarFromZero) {
  for (const double mean : {-1e3, 1e4})
    for (const Shape3 shape : {Shape3{4, 20, 49}, Shape3{2, 16, 5000}})
      this->for_each_kind({.shape = shape, .mean = mean},
                          [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, RecoversXhatWhereTheBiasIsSixtyTimesTheWeight) {
  for (const Layout layout : kLayouts)
    expect_right<TypeParam>(
        {.shape = {4, 30, 100}, .layout = layout, .weight_scale = 0.02, .bias_scale = 0.6});
}

TYPED_TEST(Abn, RepeatsItsStatisticsWhereTheFirstValuesAreNothingLikeTheRest) {
  // The first pixels of every chunk, from which the pivot is taken, lie 1e4 standard deviations away.
  for (const Layout layout : kLayouts) {
    const AbnCase c{.shape = {2, 20, 3000}, .layout = layout};
    AbnTensors<TypeParam> got(c);
    AbnTensors<double> want(c);
    const int64_t stride = layout == Layout::kNCHW ? 1 : c.shape.c;
    for (int64_t channel = 0; channel < c.shape.c; ++channel) {
      for (int64_t pixel = 0; pixel < 8; ++pixel) {
        const int64_t at = (layout == Layout::kNCHW ? channel * c.shape.s : channel) + pixel * stride;
        got.x[at] += 10000;
        want.x[at] = got.x[at];
      }
    }
    run_cpu(c, got);
    run_reference(c, want);
    EXPECT_TRUE(close(got.var.values(), want.var.values(), tolerance(dtype_of<TypeParam>()), c.seed));
    EXPECT_TRUE(close(got.z.values(), want.z.values(), tolerance(dtype_of<TypeParam>()), c.seed));
  }
}

TYPED_TEST(Abn, GivesZeroVarianceForAConstantChannel) {
  for (const Layout layout : kLayouts) {
    const AbnCase c{.shape = {3, 20, 100}, .layout = layout};
    AbnTensors<TypeParam> t(c);
    for (int64_t i = 0; i < t.x.size(); ++i) t.x[i] = TypeParam(1234.5678);
    run_cpu(c, t);
    for (int64_t i = 0; i < c.shape.c; ++i) {
      EXPECT_EQ(t.mean[i], TypeParam(1234.5678));
      EXPECT_EQ(t.var[i], 0);
    }
  }
}

TYPED_TEST(Abn, FrozenStatisticsScaleTheGradientOnly) {
  const auto check = [](const AbnCase& c) {
    SCOPED_TRACE(::testing::Message() << c);
    AbnTensors<TypeParam> got(c);
    AbnTensors<double> want(c);
    run_cpu(c, got);
    run_reference(c, want);
    kernels::cpu::abn_backward_apply(c.layer<TypeParam>(), got.z.data(), nullptr, got.dz.data(),
                                     got.weight.data(), got.bias.data(), got.inv_std.data(), nullptr, nullptr,
                                     1, got.dx.data());
    kernels::reference::abn_backward_apply(c.layer<double>(), want.z.data(), nullptr, want.dz.data(),
                                           want.weight.data(), want.bias.data(), want.inv_std.data(), nullptr,
                                           nullptr, 1, want.dx.data());
    EXPECT_TRUE(close(got.dx.values(), want.dx.values(), tolerance(dtype_of<TypeParam>()), c.seed));
  };
  for (const Shape3 shape : {Shape3{2, 33, 49}, Shape3{3, 5, 6}})
    this->for_each_kind({.shape = shape}, check);
}

TYPED_TEST(Abn, SynchronizedSumsDivideByTheGivenCount) {
  const AbnCase c{.shape = {2, 20, 30}};
  AbnTensors<TypeParam> got(c);
  AbnTensors<double> want(c);
  run_cpu(c, got);
  run_reference(c, want);
  const double m = 4 * static_cast<double>(c.shape.per_channel());
  kernels::cpu::abn_backward_apply(c.layer<TypeParam>(), got.z.data(), nullptr, got.dz.data(),
                                   got.weight.data(), got.bias.data(), got.inv_std.data(), got.sum_dy.data(),
                                   got.sum_dy_xhat.data(), m, got.dx.data());
  kernels::reference::abn_backward_apply(c.layer<double>(), want.z.data(), nullptr, want.dz.data(),
                                         want.weight.data(), want.bias.data(), want.inv_std.data(),
                                         want.sum_dy.data(), want.sum_dy_xhat.data(), m, want.dx.data());
  EXPECT_TRUE(close(got.dx.values(), want.dx.values(), tolerance(dtype_of<TypeParam>()), c.seed));
}

}  // namespace
}  // namespace palimpsest::testing
