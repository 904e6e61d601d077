// kernels/cuda/abn.h, executed by the emulator, against the reference in f64: for all dtypes, layouts,
// activations and saved tensors, sizes around a vector's width, misaligned starts, and each path through the
// device.
#include "tests/kernels/abn_truth.h"
#include "tests/kernels/cuda/abn_emulated.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <type_traits>
#include <vector>

namespace palimpsest::testing {
namespace {

template <class T>
class CudaAbn : public ::testing::Test {
 protected:
  void expect_right(const AbnCase& c, Path path) {
    SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << c << ", " << name_of(path));
    const EmulatedDevice device(path, kOrders[cases_++ % 3]);
    AbnTensors<T> got(c);
    run_cuda(c, got);
    auto want = truth(c, got);
    const Tolerance vectors = tolerance(dtype_of<accumulate_t<T>>());
    const Tolerance limit =
        c.saved == Saved::kOutputBit ? tolerance_at_minimum(dtype_of<T>()) : tolerance(dtype_of<T>());
    EXPECT_TRUE(close(got.z.values(), want.z.values(), limit, c.seed)) << "z";
    EXPECT_TRUE(close(got.saved_values.values(), want.saved_values.values(), limit, c.seed))
        << "saved values";
    EXPECT_TRUE(close(got.var.values(), want.var.values(), vectors, c.seed)) << "var";
    EXPECT_TRUE(close(got.inv_std.values(), want.inv_std.values(), vectors, c.seed)) << "inv_std";
    if (can_save(c.activation, c.saved)) {
      EXPECT_TRUE(close(got.dx.values(), want.dx.values(), limit, c.seed)) << "dx";
      EXPECT_TRUE(close(got.sum_dy.values(), want.sum_dy.values(), limit, c.seed)) << "sum_dy";
      EXPECT_TRUE(close(got.sum_dy_xhat.values(), want.sum_dy_xhat.values(), limit, c.seed)) << "sum_dy_xhat";
      EXPECT_TRUE(close(got.dresidual.values(), want.dresidual.values(), limit, c.seed)) << "dresidual";
      if (c.makes_z_again()) {
        EXPECT_TRUE(same_bytes(got.z_again.values(), got.z.values())) << "z made again";
      }
    }
    // A mean may be arbitrarily small compared with its values, so its error is compared with their spread.
    for (int64_t i = 0; i < c.shape.c; ++i)
      EXPECT_NEAR(got.mean[i], want.mean[i],
                  vectors.relative_l2 * (std::sqrt(want.var[i]) + std::abs(want.mean[i])))
          << "mean of channel " << i;
  }

  int cases_ = 0;  // each takes the next order
};

TYPED_TEST_SUITE(CudaAbn, StorageTypes, TypeName);

TYPED_TEST(CudaAbn, EqualsTheReferenceForEveryActivationAndSavedTensor) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations)
    for (const Saved saved : kAllSaved)
      for (const Layout layout : kLayouts)
        for (const int residual : {0, 1, 2}) {
          if (!can_save(activation, saved)) continue;
          this->expect_right({.shape = {3, layout == Layout::kNCHW ? 5 : 24, 49},
                              .layout = layout,
                              .activation = activation,
                              .activation_param = default_param(activation),
                              .saved = saved,
                              .has_residual = residual > 0,
                              .relu_residual = residual == 2},
                             residual == 1 ? Path::kTwoLaunches : Path::kOneBlock);
        }
}

TYPED_TEST(CudaAbn, EqualsTheReferenceForPixelsAroundAVectorAndAnyStart) {
  for (const int64_t s : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 63, 64, 65, 1000})
    for (const int64_t misaligned_by : {0, 1, 3})
      for (const Layout layout : kLayouts)
        for (const Path path : kPaths)
          this->expect_right({.shape = {s < 10 ? 31 : 3,
                                        s % 2                     ? 5
                                        : layout == Layout::kNCHW ? 2
                                                                  : 16,
                                        s},
                              .layout = layout,
                              .misaligned_by = misaligned_by},
                             path);
}

TYPED_TEST(CudaAbn, BitsOfNeighboursThatShareBytesDoNotDisturbOneAnother) {
  for (const int64_t s : {1, 3, 8, 15, 33, 100})
    for (const int64_t misaligned_by : {0, 1})
      for (const Layout layout : kLayouts)
        this->expect_right({.shape = {5,
                                      s == 8    ? 16
                                      : s == 15 ? 12
                                      : s == 33 ? 6
                                                : 7,
                                      s},
                            .layout = layout,
                            .activation = Activation::kSiLU,
                            .saved = Saved::kOutputBit,
                            .misaligned_by = misaligned_by},
                           s % 2 ? Path::kTwoLaunches : Path::kClusters);
}

TYPED_TEST(CudaAbn, FrozenStatisticsScaleTheGradientOnly) {
  for (const Layout layout : kLayouts)
    for (const Saved saved : {Saved::kOutput, Saved::kInput}) {
      const AbnCase c{.shape = {3, 16, 50}, .layout = layout, .saved = saved};
      SCOPED_TRACE(::testing::Message() << c);
      AbnTensors<TypeParam> got(c);
      run_cuda_forward(c, got);
      WorkspaceMemory workspace;
      const auto problem = c.problem<TypeParam>();
      auto frozen = got.backward(c);
      frozen.frozen_statistics = true;
      kernels::cuda::abn_backward_apply(problem, frozen, 1, workspace.queue(problem));
      AbnTensors<TypeParam> reference(c);
      auto plain = reference.backward(c);
      plain.saved_values = got.saved_tensor(c), plain.mean = got.mean.data(),
      plain.inv_std = got.inv_std.data();
      plain.frozen_statistics = true;
      kernels::reference::abn_backward_apply(problem, plain, 1);
      EXPECT_TRUE(close(got.dx.values(), reference.dx.values(), tolerance(dtype_of<TypeParam>()), c.seed));
    }
}

TYPED_TEST(CudaAbn, EqualsTheReferenceForChannelsAroundAVectorAndAPanel) {
  for (const int64_t c : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 72, 136})
    for (const Layout layout : kLayouts)
      for (const Path path : kPaths) this->expect_right({.shape = {4, c, 9}, .layout = layout}, path);
}

// In channels-last a vector has as many values, 8, 4, 2 or 1, as divide the channels and the addresses, and a
// panel as many vectors as leave few lanes idle.
TYPED_TEST(CudaAbn, EqualsTheReferenceForEveryWidthOfVectorsAndPanels) {
  int path = 0;
  for (const int64_t c : {2, 4, 6, 8, 10, 12, 20, 24, 36, 40, 48, 100})
    for (const int64_t misaligned_by : {0, 2, 4})
      this->expect_right({.shape = {2, c, 270},
                          .layout = Layout::kChannelsLast,
                          .saved = path % 4 == 3 ? Saved::kInput : Saved::kOutput,
                          .has_residual = c % 8 == 4,
                          .misaligned_by = misaligned_by},
                         kPaths[path++ % 3]);
}

TYPED_TEST(CudaAbn, EqualsTheReferenceWhereManyBlocksShareAChannel) {
  for (const Shape3 shape : {Shape3{1, 1, 30001}, Shape3{40, 2, 630}, Shape3{2, 16, 5000}})
    for (const Layout layout : kLayouts)
      for (const Path path : kPaths) this->expect_right({.shape = shape, .layout = layout}, path);
}

TYPED_TEST(CudaAbn, EqualsTheReferenceWhereAThreadReadsMoreThanARingHolds) {
  // A block per panel, whose threads read 9 vectors each.
  constexpr int kVector = sizeof(TypeParam) == 8 ? 1 : 16 / sizeof(TypeParam);
  const Shape3 shape{1, int64_t{8} * kVector * 250, 290};
  if (kVector > 1) this->expect_right({.shape = shape, .layout = Layout::kChannelsLast}, Path::kTwoLaunches);
}

TYPED_TEST(CudaAbn, EqualsTheReferenceWithoutWeightOrBias) {
  for (const bool has_weight : {false, true})
    for (const Layout layout : kLayouts)
      for (const Saved saved : {Saved::kOutput, Saved::kNormalized})
        this->expect_right({.shape = {3, 16, 21},
                            .layout = layout,
                            .saved = saved,
                            .has_weight = has_weight,
                            .has_bias = !has_weight},
                           Path::kTwoLaunches);
}

TYPED_TEST(CudaAbn, LosesNoDigitsWhereTheMeanIsFarFromZero) {
  if (sizeof(TypeParam) == 2) GTEST_SKIP() << "16-bit storage has no digits there";
  for (const double mean : {-1e3, 1e4})
    for (const Shape3 shape : {Shape3{4, 16, 49}, Shape3{2, 16, 5000}})
      for (const Layout layout : kLayouts)
        for (const Path path : kPaths)
          this->expect_right({.shape = shape, .layout = layout, .mean = mean}, path);
}

TYPED_TEST(CudaAbn, KeepsItsDigitsWhereTheFirstValuesAreNothingLikeTheRest) {
  for (const Layout layout : kLayouts)
    for (const Path path : kPaths) {
      const AbnCase c{.shape = {2, 16, 3000}, .layout = layout};
      const EmulatedDevice device(path);
      expect_digits_beside_outliers<TypeParam>(c);
    }
}

TYPED_TEST(CudaAbn, GivesZeroVarianceForAConstantChannel) {
  for (const Layout layout : kLayouts)
    for (const Path path : kPaths) {
      const AbnCase c{.shape = {3, 16, 100}, .layout = layout};
      const EmulatedDevice device(path);
      AbnTensors<TypeParam> t(c);
      for (int64_t i = 0; i < t.x.size(); ++i) t.x[i] = TypeParam(1234.5678);
      run_cuda_forward(c, t);
      for (int64_t i = 0; i < c.shape.c; ++i) {
        EXPECT_EQ(t.mean[i], static_cast<double>(TypeParam(1234.5678)));
        EXPECT_EQ(t.var[i], 0);
      }
    }
}

TYPED_TEST(CudaAbn, MovesTheRunningStatisticsTowardsTheBatchs) {
  using A = accumulate_t<TypeParam>;
  for (const Layout layout : kLayouts)
    for (const Path path : kPaths) {
      const AbnCase c{.shape = {3, 16, 50}, .layout = layout};
      const EmulatedDevice device(path);
      AbnTensors<TypeParam> t(c);
      Buffer<A> mean(c.shape.c), var(c.shape.c);
      for (int64_t i = 0; i < c.shape.c; ++i) mean[i] = static_cast<A>(i), var[i] = static_cast<A>(2 + i);
      run_cuda_forward(c, t, {mean.data(), var.data(), 0.3});
      const auto m = static_cast<double>(c.shape.per_channel());
      std::vector<double> want_mean, want_var;
      for (int64_t i = 0; i < c.shape.c; ++i) {
        want_mean.push_back(0.7 * static_cast<double>(i) + 0.3 * t.mean[i]);
        want_var.push_back(0.7 * static_cast<double>(2 + i) + 0.3 * t.var[i] * m / (m - 1));
      }
      const Tolerance limit = tolerance(dtype_of<A>());
      EXPECT_TRUE(close(mean.values(), std::span<const double>(want_mean), limit, c.seed));
      EXPECT_TRUE(close(var.values(), std::span<const double>(want_var), limit, c.seed));
    }
}

}  // namespace
}  // namespace palimpsest::testing
