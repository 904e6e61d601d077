#include "tests/kernels/dense_block_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <type_traits>

// A layer of a densely connected block: products of normalized features, and their gradients.
namespace palimpsest::testing {
namespace {

template <class S, class Want>
void expect_close(std::span<const S> got, std::span<const Want> want, DType dtype, const DenseCase& c,
                  const char* what) {
  EXPECT_TRUE(close(got, want, tolerance(dtype), c.seed)) << what << " of " << c;
}

template <class S>
void expect_equals_reference(const DenseCase& c) {
  using Truth = std::conditional_t<sizeof(S) == 2, S, double>;
  DenseTensors<S> got(c);
  DenseTensors<Truth, S> want(c);
  kernels::cpu::dense_product(c.problem<S>(), got.norm(), got.x.data(), got.w.data(), got.h.data());
  kernels::cpu::dense_product_backward(c.problem<S>(), got.norm(), got.backward());
  kernels::reference::dense_product(c.problem<Truth>(), want.norm(), want.x.data(), want.w.data(),
                                    want.h.data());
  kernels::reference::dense_product_backward(c.problem<Truth>(), want.norm(), want.backward());
  const DType dtype = dtype_of<S>();
  expect_close(got.h.values(), want.h.values(), dtype, c, "h");
  expect_close(got.gradient.values(), want.gradient.values(), dtype, c, "gradient");
  expect_close(got.dw.values(), want.dw.values(), dtype, c, "dw");
  expect_close(std::span<const double>(got.sum_dy), std::span<const double>(want.sum_dy), dtype, c, "sum_dy");
  expect_close(std::span<const double>(got.sum_dy_x), std::span<const double>(want.sum_dy_x), dtype, c,
               "sum_dy_x");
}

template <class S>
class DenseBlock : public ::testing::Test {};
TYPED_TEST_SUITE(DenseBlock, StorageTypes, TypeName);

TYPED_TEST(DenseBlock, EqualsTheReferenceForChannelsAroundVectors) {
  for (const Layout layout : kLayouts)
    for (const int64_t c : {1, 7, 16, 31, 33, 50})
      for (const int64_t out : {1, 12, 48, 65})
        expect_equals_reference<TypeParam>({2, 21, c, c + 3, out, layout});
}

TYPED_TEST(DenseBlock, EqualsTheReferenceForImagesAroundVectors) {
  for (const Layout layout : kLayouts)
    for (const int64_t s : {1, 15, 16, 49, 300})
      for (const Activation activation : {Activation::kReLU, Activation::kLeakyReLU, Activation::kIdentity})
        expect_equals_reference<TypeParam>({3, s, 20, 20, 12, layout, activation, 0.5, s % 3});
}

TYPED_TEST(DenseBlock, EqualsTheReferenceInManyChunksAndSegments) {
  for (const Layout layout : kLayouts)
    expect_equals_reference<TypeParam>({9, 400, 40, 44, 24, layout, Activation::kLeakyReLU});
}

TYPED_TEST(DenseBlock, EqualsTheReferenceForSeveralBlocksOfChannels) {
  for (const Layout layout : kLayouts)
    for (const int64_t c : {255, 256, 257, 300, 530, 790})
      for (const int64_t s : {3, 290}) expect_equals_reference<TypeParam>({2, s, c, c + 3, 12, layout});
}

TYPED_TEST(DenseBlock, EqualsTheReferenceWhereASegmentHasSeveralChunks) {
  expect_equals_reference<TypeParam>({70, 3, 20, 23, 12, Layout::kNCHW});
  expect_equals_reference<TypeParam>({2, 4500, 8, 11, 12, Layout::kChannelsLast});
  expect_equals_reference<TypeParam>({2, 1000, 2050, 2053, 4, Layout::kChannelsLast});
}

TYPED_TEST(DenseBlock, HasTheSameBytesForAnyNumberOfThreads) {
  const int before = omp_get_max_threads();
  const auto expect_same = [](const DenseCase& c) {
    const auto run = [&](int threads) {
      omp_set_num_threads(threads);
      DenseTensors<TypeParam> t(c);
      kernels::cpu::dense_product(c.problem<TypeParam>(), t.norm(), t.x.data(), t.w.data(), t.h.data());
      kernels::cpu::dense_product_backward(c.problem<TypeParam>(), t.norm(), t.backward());
      return t;
    };
    const auto one = run(1), three = run(3);
    EXPECT_TRUE(same_bytes(three.h.values(), one.h.values()));
    EXPECT_TRUE(same_bytes(three.dw.values(), one.dw.values()));
    EXPECT_TRUE(same_bytes(three.gradient.values(), one.gradient.values()));
    EXPECT_EQ(three.sum_dy, one.sum_dy);
    EXPECT_TRUE(same_bytes(std::span<const double>(three.sum_dy_x), std::span<const double>(one.sum_dy_x)));
  };
  for (const Layout layout : kLayouts) {
    expect_same({7, 300, 40, 44, 24, layout});
    expect_same({3, 300, 530, 532, 24, layout});
  }
  expect_same({2, 4500, 8, 11, 24, Layout::kChannelsLast});
  omp_set_num_threads(before);
}

TYPED_TEST(DenseBlock, WritesOnlyTheGradientsThatAreAskedFor) {
  for (const DenseCase& c :
       {DenseCase{2, 30, 20, 24, 12, Layout::kNCHW}, DenseCase{2, 30, 20, 24, 12, Layout::kChannelsLast},
        DenseCase{2, 30, 300, 304, 12, Layout::kChannelsLast}}) {
    DenseTensors<TypeParam> all(c), sums(c), weight(c), gradient(c), inputs(c);
    kernels::cpu::dense_product_backward(c.problem<TypeParam>(), all.norm(), all.backward());
    auto t = sums.backward();
    t.dw = t.gradient = nullptr;
    kernels::cpu::dense_product_backward(c.problem<TypeParam>(), sums.norm(), t);
    EXPECT_EQ(sums.sum_dy, all.sum_dy);
    EXPECT_TRUE(same_bytes(sums.gradient.values(), DenseTensors<TypeParam>(c).gradient.values()));
    t = weight.backward();
    t.gradient = nullptr, t.sum_dy = t.sum_dy_x = nullptr;
    kernels::cpu::dense_product_backward(c.problem<TypeParam>(), weight.norm(), t);
    EXPECT_TRUE(same_bytes(weight.dw.values(), all.dw.values()));
    t = gradient.backward();
    t.dw = nullptr, t.sum_dy = t.sum_dy_x = nullptr;
    kernels::cpu::dense_product_backward(c.problem<TypeParam>(), gradient.norm(), t);
    EXPECT_TRUE(same_bytes(gradient.gradient.values(), all.gradient.values()));
    EXPECT_TRUE(same_bytes(gradient.dw.values(), DenseTensors<TypeParam>(c).dw.values()));
    t = inputs.backward();
    t.dw = nullptr;
    kernels::cpu::dense_product_backward(c.problem<TypeParam>(), inputs.norm(), t);
    EXPECT_TRUE(same_bytes(inputs.gradient.values(), all.gradient.values()));
    EXPECT_EQ(inputs.sum_dy_x, all.sum_dy_x);
  }
}

TYPED_TEST(DenseBlock, NotANumberStaysInItsPixel) {
  for (const Layout layout : kLayouts)
    for (const Activation activation : {Activation::kReLU, Activation::kLeakyReLU, Activation::kIdentity}) {
      const DenseCase c{2, 21, 20, 23, 12, layout, activation};
      DenseTensors<TypeParam> got(c), want(c);
      const int64_t at = layout == Layout::kNCHW ? (c.total + 4) * c.s + 9 : (c.s + 9) * c.total + 4;
      got.x[at] = want.x[at] = static_cast<TypeParam>(std::numeric_limits<double>::quiet_NaN());
      kernels::cpu::dense_product(c.problem<TypeParam>(), got.norm(), got.x.data(), got.w.data(),
                                  got.h.data());
      kernels::reference::dense_product(c.problem<TypeParam>(), want.norm(), want.x.data(), want.w.data(),
                                        want.h.data());
      for (int64_t i = 0; i < got.h.size(); ++i) {
        const int64_t pixel = layout == Layout::kNCHW ? i / (c.out * c.s) * c.s + i % c.s : i / c.out;
        EXPECT_EQ(std::isnan(static_cast<double>(got.h[i])), pixel == c.s + 9) << c << ", element " << i;
        EXPECT_EQ(std::isnan(static_cast<double>(want.h[i])), pixel == c.s + 9) << c << ", element " << i;
      }
    }
}

TYPED_TEST(DenseBlock, TheGradientPassesNotANumberAsTheReferencesDoes) {
  for (const Layout layout : kLayouts) {
    const DenseCase c{2, 21, 20, 23, 12, layout};
    DenseTensors<TypeParam> got(c), want(c);
    const int64_t at = layout == Layout::kNCHW ? (c.total + 4) * c.s + 9 : (c.s + 9) * c.total + 4;
    got.x[at] = want.x[at] = static_cast<TypeParam>(std::numeric_limits<double>::quiet_NaN());
    kernels::cpu::dense_product_backward(c.problem<TypeParam>(), got.norm(), got.backward());
    kernels::reference::dense_product_backward(c.problem<TypeParam>(), want.norm(), want.backward());
    const auto close_to = [](double a, double b) { return std::abs(a - b) <= 1e-2 * (1 + std::abs(b)); };
    EXPECT_TRUE(close_to(static_cast<double>(got.gradient[at]), static_cast<double>(want.gradient[at])));
    EXPECT_TRUE(close_to(got.sum_dy[4], want.sum_dy[4]));
  }
}

TYPED_TEST(DenseBlock, SubtractsTheCorrectionOfNormalizationFromAFeaturesGradient) {
  using S = TypeParam;
  using Truth = std::conditional_t<sizeof(S) == 2, S, double>;
  for (const Layout layout : kLayouts)
    for (const int64_t count : {1, 12, 16, 33}) {
      // A large mean: the deviation from it must be computed first.
      const DenseCase c{3, 50, count + 5, count + 7, 1, layout, Activation::kReLU, 100};
      const auto run = [&]<class V>(DenseTensors<V, S> t, const auto& kernel) {
        Buffer<V> df(c.n * count * c.s, 1);
        kernel({c.n, c.s, 5, count, c.total, layout, dtype_of<V>()},
               {t.mean.data() + 5, t.shift.data() + 5, t.scale.data() + 5}, t.x.data(), t.gradient.data(),
               df.data());
        return df;
      };
      const auto got = run(DenseTensors<S, S>(c), kernels::cpu::dense_feature_gradient);
      const auto want = run(DenseTensors<Truth, S>(c), kernels::reference::dense_feature_gradient);
      expect_close(got.values(), want.values(), dtype_of<S>(), c, "df");
    }
}

}  // namespace
}  // namespace palimpsest::testing
