// kernels/cuda/dense_block.h, executed by the emulator, against the reference. The layer's 1x1 convolution is
// the identity, so that its h is z and its dh is dz.
#include "tests/kernels/cuda/dense_block_emulated.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

namespace palimpsest::testing {
namespace {

constexpr Activation kActivations[] = {Activation::kReLU, Activation::kLeakyReLU, Activation::kIdentity};
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <class Got>
void expect_near(const std::vector<Got>& got, const std::vector<double>& want, DType dtype,
                 const DenseCase& c, const char* what) {
  EXPECT_TRUE(close(std::span<const Got>(got), std::span<const double>(want), tolerance(dtype), c.seed))
      << what << " of " << c;
}

template <class S>
void expect_reference(DenseCase c) {
  using Truth = std::conditional_t<sizeof(S) == 2, S, double>;
  c.out = c.c;
  CudaDense<S> got(c);
  CudaDense<Truth, S> want(c);
  got.forward();
  got.backward(got.all_gradients());
  kernels::reference::dense_product(want.problem(), want.norm(), want.x.data(), want.w.data(), want.h.data());
  kernels::reference::dense_product_backward(want.problem(), want.norm(),
                                             static_cast<DenseTensors<Truth, S>&>(want).backward());
  const DType dtype = dtype_of<S>();
  const auto m = static_cast<double>(c.n * c.s);
  std::vector<double> dweight, constant, per_deviation;
  for (std::size_t i = 0; i < want.sum_dy.size(); ++i) {
    const double r = want.inv_std(i), by = want.scale[i];
    dweight.push_back(want.sum_dy_x[i] * r);
    constant.push_back(0.5 + by * want.sum_dy[i] / m);
    per_deviation.push_back(-0.25 + by * r * r * want.sum_dy_x[i] / m);
  }
  EXPECT_TRUE(close(got.h.values(), want.h.values(), tolerance(dtype), c.seed)) << "z of " << c;
  EXPECT_TRUE(same_bytes(std::span<const S>(got.dh.values()), std::span<const S>(got.h.values())))
      << "z again of " << c;
  EXPECT_TRUE(close(got.gradient.values(), want.gradient.values(), tolerance(dtype), c.seed))
      << "gradient of " << c;
  expect_near(got.dbias, want.sum_dy, dtype, c, "dbias");
  expect_near(got.dweight, dweight, dtype, c, "dweight");
  expect_near(got.constant, constant, dtype, c, "constant");
  expect_near(got.per_deviation, per_deviation, dtype, c, "per_deviation");
}

template <class S>
class CudaDenseBlock : public ::testing::Test {
 protected:
  ~CudaDenseBlock() override { cuda_emulator::settings() = {}; }

  void expect_right(DenseCase c) {
    cuda_emulator::settings().order = kOrders[cases_ % 3];
    c.activation = kActivations[cases_++ % 3];
    expect_reference<S>(c);
  }

  int cases_ = 0;  // each takes the next order and the next activation
};
TYPED_TEST_SUITE(CudaDenseBlock, StorageTypes, TypeName);

TYPED_TEST(CudaDenseBlock, IsTheReferenceForChannelsAroundVectorsAndPanels) {
  for (const Layout layout : kLayouts)
    for (const int64_t c : {1, 7, 8, 31, 32, 33, 64, 72})
      for (const int64_t more : {0, 3, 8}) this->expect_right({2, 21, c, c + more, 0, layout});
}

TYPED_TEST(CudaDenseBlock, IsTheReferenceForImagesAroundVectorsAndAnyStart) {
  for (const Layout layout : kLayouts)
    for (const int64_t s : {1, 4, 8, 15, 16, 49, 264})
      for (const int64_t off : {0, 1})
        this->expect_right(
            {.n = 3, .s = s, .c = 16, .total = 24, .out = 0, .layout = layout, .misaligned_by = off});
}

TYPED_TEST(CudaDenseBlock, IsTheReferenceInManySegments) {
  this->expect_right({2, 8200, 2, 3, 0, Layout::kNCHW});
  this->expect_right({3, 700, 8, 16, 0, Layout::kChannelsLast});
  this->expect_right({3, 700, 40, 41, 0, Layout::kChannelsLast, Activation::kReLU, 1e4});
}

TYPED_TEST(CudaDenseBlock, EveryOrderOfThreadsGivesTheSameBytes) {
  for (const DenseCase& c :
       {DenseCase{2, 4200, 2, 3, 2, Layout::kNCHW}, DenseCase{2, 500, 16, 24, 16, Layout::kChannelsLast}}) {
    const auto run = [&](Order order) {
      cuda_emulator::settings().order = order;
      CudaDense<TypeParam> t(c);
      t.forward();
      t.backward(t.all_gradients());
      return t;
    };
    const auto want = run(Order::kForward);
    for (const Order order : kOrders) {
      const auto got = run(order);
      EXPECT_TRUE(same_bytes(got.h.values(), want.h.values()));
      EXPECT_TRUE(same_bytes(got.gradient.values(), want.gradient.values()));
      EXPECT_EQ(got.dweight, want.dweight);
      EXPECT_EQ(got.dbias, want.dbias);
      EXPECT_EQ(got.constant, want.constant);
      EXPECT_EQ(got.per_deviation, want.per_deviation);
    }
  }
}

TYPED_TEST(CudaDenseBlock, NotANumberStaysNotANumber) {
  for (const Layout layout : kLayouts)
    for (const Activation activation : kActivations) {
      const DenseCase c{2, 21, 16, 24, 16, layout, activation};
      CudaDense<TypeParam> t(c);
      const int64_t value = layout == Layout::kNCHW ? (c.total + 4) * c.s + 9 : (c.s + 9) * c.total + 4;
      t.x[value] = static_cast<TypeParam>(kNaN);
      t.weight[7] = static_cast<typename CudaDense<TypeParam>::T>(kNaN);
      t.forward();
      for (int64_t i = 0; i < t.h.size(); ++i) {
        const int64_t channel = layout == Layout::kNCHW ? i / c.s % c.c : i % c.c;
        const int64_t pixel = layout == Layout::kNCHW ? i / (c.c * c.s) * c.s + i % c.s : i / c.c;
        EXPECT_EQ(std::isnan(static_cast<double>(t.h[i])), channel == 7 || (channel == 4 && pixel == c.s + 9))
            << c << ", element " << i;
      }
    }
}

TYPED_TEST(CudaDenseBlock, WritesOnlyWhatIsAskedFor) {
  for (const Layout layout : kLayouts) {
    const DenseCase c{2, 40, 16, 24, 16, layout};
    CudaDense<TypeParam> all(c), sums(c), gradient(c);
    const CudaDense<TypeParam> before(c);
    all.backward(all.all_gradients());
    sums.backward({.x = sums.x.data(), .dz = sums.dh.data(), .dbias = sums.dbias.data()});
    EXPECT_EQ(sums.dbias, all.dbias);
    EXPECT_TRUE(same_bytes(sums.dh.values(), before.dh.values()));
    EXPECT_TRUE(same_bytes(sums.gradient.values(), before.gradient.values()));
    gradient.backward(
        {.x = gradient.x.data(), .dz = gradient.dh.data(), .gradient = gradient.gradient.data()});
    EXPECT_TRUE(same_bytes(gradient.gradient.values(), all.gradient.values()));
    EXPECT_EQ(gradient.constant, before.constant);
  }
}

TYPED_TEST(CudaDenseBlock, SubtractsTheCorrectionFromAFeaturesGradient) {
  using S = TypeParam;
  using Truth = std::conditional_t<sizeof(S) == 2, S, double>;
  int cases = 0;
  for (const Layout layout : kLayouts)
    for (const int64_t count : {1, 12, 16, 32, 72})
      for (const int64_t first : {0, 5, 8})
        for (const int64_t s : {48, 49}) {
          cuda_emulator::settings().order = kOrders[cases++ % 3];
          // A large mean, so that digits are lost unless it is subtracted first.
          const DenseCase c{3, s, count + first, count + first + 8, 1, layout, Activation::kReLU, 100};
          const auto run = [&]<class V>(DenseTensors<V, S> t, const auto& kernel) {
            Buffer<V> df(c.n * count * c.s);
            for (int64_t i = 0; i < df.size(); ++i) df[i] = static_cast<V>(kNaN);
            kernel({c.n, c.s, first, count, c.total, layout, dtype_of<V>()},
                   {t.mean.data() + first, t.shift.data() + first, t.scale.data() + first}, t.x.data(),
                   t.gradient.data(), df.data());
            return df;
          };
          const auto got = run(DenseTensors<S, S>(c),
                               [](const kernels::DenseFeatureProblem& f, const kernels::DenseCorrection& k,
                                  const void* x, const void* gradient, void* df) {
                                 kernels::cuda::dense_feature_gradient(f, k, x, gradient, df, nullptr);
                               });
          const auto want = run(DenseTensors<Truth, S>(c), kernels::reference::dense_feature_gradient);
          EXPECT_TRUE(close(got.values(), want.values(), tolerance(dtype_of<S>()), c.seed)) << c;
        }
}

TYPED_TEST(CudaDenseBlock, MovesRunningStatisticsOncePerChannel) {
  for (const Layout layout : kLayouts) {
    const DenseCase c{3, 700, 40, 48, 40, layout};  // channels-last: several segments
    CudaDense<TypeParam> t(c);
    t.forward({t.running_mean.data(), t.running_var.data(), 0.25});
    std::vector<double> mean, var;
    for (std::size_t i = 0; i < t.var.size(); ++i) {
      mean.push_back(0.75 * 2 + 0.25 * t.mean[i]);
      var.push_back(0.75 * 3 + 0.25 * t.var[i] * 2100 / 2099);
    }
    const DType accumulate = dtype_of<accumulate_t<TypeParam>>();
    expect_near(t.running_mean, mean, accumulate, c, "running mean");
    expect_near(t.running_var, var, accumulate, c, "running var");
  }
}

TEST(CudaDenseBlockContract, EachIsOneLaunchAndAnEmptyBatchNone) {
  DenseCase c{1, 9, 8, 8, 8};
  CudaDense<float> t(c);
  int64_t before = cuda_emulator::launches();
  t.forward();
  EXPECT_EQ(cuda_emulator::launches() - before, 1);
  t.backward(t.all_gradients());
  EXPECT_EQ(cuda_emulator::launches() - before, 2);
  t.c.n = 0;
  before = cuda_emulator::launches();
  t.forward();
  t.backward(t.all_gradients());
  kernels::cuda::dense_feature_gradient({0, 9, 0, 8, 8}, {}, nullptr, nullptr, nullptr, nullptr);
  EXPECT_EQ(cuda_emulator::launches(), before);
}

TEST(CudaDenseBlockContract, RefusesMorePixelsThanItCanCount) {
  DenseProductProblem problem{3, int64_t{1} << 30, 1, 1, 1};
  problem.layout = Layout::kChannelsLast;
  try {
    kernels::cuda::dense_normalize(problem, {}, {}, nullptr, nullptr, nullptr);
    ADD_FAILURE() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("split the batch"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace palimpsest::testing
