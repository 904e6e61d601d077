// The CPU kernels against the reference, which runs in f64 on the same numbers: over the grid of dtypes,
// layouts, activations, sizes around a vector's width, and starts off its boundary.
#include "tests/kernels/abn_truth.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

namespace palimpsest::testing {
namespace {

// Every output of forward and backward against the f64 truth.
template <class T>
void expect_right(const AbnCase& c) {
  SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << c);
  AbnTensors<T> got(c);
  run_cpu(c, got);
  auto want = truth(c, got);
  const DType dtype = dtype_of<T>();
  const Tolerance limit = c.saved == Saved::kOutputBit ? tolerance_at_minimum(dtype) : tolerance(dtype),
                  vectors = tolerance(dtype_of<accumulate_t<T>>());
  EXPECT_TRUE(close(got.z.values(), want.z.values(), limit, c.seed)) << "z";
  EXPECT_TRUE(close(got.var.values(), want.var.values(), vectors, c.seed)) << "var";
  EXPECT_TRUE(close(got.inv_std.values(), want.inv_std.values(), vectors, c.seed)) << "inv_std";
  EXPECT_TRUE(close(got.dx.values(), want.dx.values(), limit, c.seed)) << "dx";
  EXPECT_TRUE(close(got.sum_dy.values(), want.sum_dy.values(), limit, c.seed)) << "sum_dy";
  EXPECT_TRUE(close(got.sum_dy_xhat.values(), want.sum_dy_xhat.values(), limit, c.seed)) << "sum_dy_xhat";
  EXPECT_TRUE(close(got.saved_values.values(), want.saved_values.values(), limit, c.seed)) << "saved values";
  EXPECT_TRUE(close(got.dresidual.values(), want.dresidual.values(), limit, c.seed)) << "dresidual";
  EXPECT_TRUE(close(got.z_again.values(), want.z_again.values(), limit, c.seed)) << "z recomputed";
  if (c.makes_z_again()) {
    EXPECT_EQ(0, std::memcmp(got.z_again.data(), got.z.data(), sizeof(T) * c.shape.elements()))
        << "z recomputed has other bytes";
  }
  // A mean may be arbitrarily small against its values, so its error is compared with their spread.
  for (int64_t i = 0; i < c.shape.c; ++i)
    EXPECT_NEAR(got.mean[i], want.mean[i],
                vectors.relative_l2 * (std::sqrt(want.var[i]) + std::abs(want.mean[i])))
        << "mean of channel " << i;
}

template <class T>
class Abn : public ::testing::Test {
 protected:
  // `body` with every layout and activation: by default a straight-line and a curved one.
  template <class Body>
  static void for_each_kind(AbnCase c, const Body& body,
                            const std::vector<Activation>& activations = {Activation::kLeakyReLU,
                                                                          Activation::kELU}) {
    for (const Layout layout : kLayouts) {
      for (const Activation activation : activations) {
        c.layout = layout;
        c.activation = activation;
        c.activation_param = default_param(activation);
        body(c);
      }
    }
  }

  // The same activations, and one with two branches, whose bits share bytes between rows.
  template <class Body>
  static void for_each_kind_and_bits(AbnCase c, const Body& body, Activation branched = Activation::kGELU) {
    for_each_kind(c, body);
    c.activation = branched;
    c.saved = Saved::kOutputBit;
    for (const Layout layout : kLayouts) {
      c.layout = layout;
      body(c);
    }
  }
};

TYPED_TEST_SUITE(Abn, StorageTypes, TypeName);

TYPED_TEST(Abn, EqualsTheReferenceForEveryActivationAndSavedTensor) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    for (const Saved saved : kAllSaved) {
      if (!can_save(activation, saved)) continue;
      // Vectors, rows shorter than a vector, and strips of such rows.
      for (const Shape3 shape : {Shape3{3, 20, 49}, Shape3{7, 3, 6}, Shape3{4, 34, 10}}) {
        for (const Layout layout : kLayouts) {
          for (const int residual : {0, 1, 2}) {
            expect_right<TypeParam>({.shape = shape,
                                     .layout = layout,
                                     .activation = activation,
                                     .activation_param = default_param(activation),
                                     .saved = saved,
                                     .has_residual = residual > 0,
                                     .relu_residual = residual == 2});
          }
        }
      }
    }
  }
}

TYPED_TEST(Abn, RecomputesTheOutputBitForBit) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    for (const Saved saved : {Saved::kPreActivation, Saved::kNormalized, Saved::kInput}) {
      for (const Layout layout : kLayouts) {
        for (const bool has_residual : {false, true}) {
          const AbnCase c{.shape = {3, 18, 50},
                          .layout = layout,
                          .activation = activation,
                          .activation_param = default_param(activation),
                          .saved = saved,
                          .has_residual = has_residual,
                          .mean = 1e3};
          SCOPED_TRACE(::testing::Message() << c);
          AbnTensors<TypeParam> t(c), again(c);
          run_cpu(c, t);
          kernels::AbnForward from = t.forward(c);
          from.saved_values = t.saved_tensor(c);
          from.z = again.z.data();
          kernels::cpu::abn_recompute_output(c.problem<TypeParam>(), from);
          EXPECT_TRUE(same_bytes(again.z.values(), t.z.values()));
        }
      }
    }
  }
}

// At least 30 values per channel: with 2, for example, dx is zero but for eps, and the rest of dx is
// rounding.

TYPED_TEST(Abn, EqualsTheReferenceForSizesAroundAVector) {
  for (const int64_t s : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 49, 63, 64, 65, 1000})
    for (const int64_t c : {5, 32})
      this->for_each_kind_and_bits({.shape = {s < 10 ? 31 : 3, c, s}},
                                   [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceForChannelsAroundAVector) {
  for (const int64_t c : {2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 511, 512, 513, 1000})
    for (const int64_t s : {1, 9})
      this->for_each_kind_and_bits({.shape = {s == 1 ? 31 : 4, c, s}},
                                   [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceForOneImageOneChannelOnePixel) {
  for (const Shape3 shape : {Shape3{1, 1, 40}, Shape3{40, 1, 1}, Shape3{1, 7, 50}, Shape3{300, 40, 1}})
    this->for_each_kind_and_bits({.shape = shape}, [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceOffEveryVectorBoundary) {
  for (const int64_t misaligned_by : {1, 3, 7, 15})
    for (const Shape3 shape : {Shape3{2, 17, 33}, Shape3{2, 16, 64}, Shape3{3, 40, 49}})
      this->for_each_kind_and_bits({.shape = shape, .misaligned_by = misaligned_by},
                                   [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceWhereATensorIsCutIntoManyPieces) {
  // Many segments by image, by pixel, and of rows; many panels; chunks that end in the middle.
  for (const Shape3 shape :
       {Shape3{40, 2, 3600}, Shape3{1, 1, 150001}, Shape3{3, 520, 200}, Shape3{2, 40, 2000}})
    // SiLU: the reference finds its y in a third of the time that GELU takes.
    this->for_each_kind_and_bits(
        {.shape = shape}, [](const AbnCase& abn) { expect_right<TypeParam>(abn); }, Activation::kSiLU);
}

TYPED_TEST(Abn, EqualsTheReferenceForSmallPlanesSideBySide) {
  // Strips of 2 to 16 channels, the last one narrower; rows in one chunk and in two; a plane that is too
  // large.
  for (const Shape3 shape : {Shape3{32, 70, 49}, Shape3{2, 515, 49}, Shape3{16, 500, 2}, Shape3{150, 132, 4},
                             Shape3{12, 40, 100}, Shape3{12, 40, 101}})
    for (const int64_t misaligned_by : {0, 3})
      this->for_each_kind_and_bits({.shape = shape, .misaligned_by = misaligned_by},
                                   [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TEST(AbnFromMemory, EqualsTheReferenceForStripsOfLargerPlanes) {
  // More than 16 MiB of f32: planes of up to 400 pixels are strips, of 4 channels and of 2. The last one has 1.
  for (const Shape3 shape : {Shape3{4, 5401, 196}, Shape3{4, 2623, 400}})
    for (const Saved saved : {Saved::kOutput, Saved::kNormalized})
      expect_right<float>({.shape = shape, .layout = Layout::kNCHW, .saved = saved});
}

TYPED_TEST(Abn, EqualsTheReferenceWithoutWeightOrBias) {
  for (const bool has_weight : {false, true})
    for (const Shape3 shape : {Shape3{3, 20, 21}, Shape3{4, 40, 16}})
      this->for_each_kind({.shape = shape, .has_weight = has_weight, .has_bias = false},
                          [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, EqualsTheReferenceWhereXhatOrXIsSavedForATinyWeight) {
  for (const Saved saved : {Saved::kNormalized, Saved::kInput})
    for (const Shape3 shape : {Shape3{3, 20, 33}, Shape3{4, 33, 9}})
      // In f16 a smaller weight would leave only the smallest numbers of dx.
      this->for_each_kind(
          {.shape = shape, .saved = saved, .weight_scale = sizeof(TypeParam) == 2 ? 1e-2 : 1e-6},
          [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, LosesNoDigitsWhereTheMeanIsFarFromZero) {
  if (sizeof(TypeParam) == 2) GTEST_SKIP() << "16-bit storage has no digits left there";
  for (const double mean : {-1e3, 1e4})
    for (const Shape3 shape : {Shape3{4, 20, 49}, Shape3{4, 70, 49}, Shape3{2, 16, 5000}})
      this->for_each_kind({.shape = shape, .mean = mean},
                          [](const AbnCase& abn) { expect_right<TypeParam>(abn); });
}

TYPED_TEST(Abn, AFarMeanCostsAFractionOfWhatRoundingTheInputCosts) {
  if (sizeof(TypeParam) != 2) GTEST_SKIP() << "see LosesNoDigitsWhereTheMeanIsFarFromZero";
  constexpr DType kDType = dtype_of<TypeParam>();
  for (const double mean : {-30.0, 300.0, 3000.0})
    for (const Shape3 shape : {Shape3{4, 20, 49}, Shape3{4, 70, 49}, Shape3{2, 16, 5000}})
      this->for_each_kind({.shape = shape, .mean = mean}, [](const AbnCase& c) {
        SCOPED_TRACE(::testing::Message() << c);
        AbnTensors<TypeParam> got(c);
        AbnTensors<double, TypeParam> want(c);
        run_cpu(c, got);
        want.mean = got.mean;
        want.inv_std = got.inv_std;
        kernels::reference::abn_apply(c.problem<double>(), want.forward(c));
        int64_t wrong = 0;
        for (int64_t i = 0; i < got.z.size(); ++i) {
          const int64_t channel = c.layout == Layout::kNCHW ? i / c.shape.s % c.shape.c : i % c.shape.c;
          const double scale = std::abs(want.weight[channel]) * want.inv_std[channel];
          const double limit = kRoundedZ * unit_in_last_place(kDType, want.z[i]) +
                               kFarMean * unit_in_last_place(kDType, want.mean[channel]) * scale;
          const bool is_right = std::abs(static_cast<double>(got.z[i]) - want.z[i]) <= limit;
          wrong += is_right ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0);
      });
}

TYPED_TEST(Abn, TheInputGradientIsRightWhereTheMeanOrTheBiasIsFarFromZero) {
  if (sizeof(TypeParam) != 2) GTEST_SKIP() << "see LosesNoDigitsWhereTheMeanIsFarFromZero";
  for (const Saved saved :
       {Saved::kOutput, Saved::kOutputForm1, Saved::kPreActivation, Saved::kNormalized, Saved::kInput})
    for (const Shape3 shape : {Shape3{4, 20, 49}, Shape3{4, 70, 49}, Shape3{2, 16, 5000}})
      this->for_each_kind({.shape = shape, .saved = saved, .mean = -30, .bias_scale = 3},
                          [](const AbnCase& c) { expect_right<TypeParam>(c); });
}

// Where v * scale + shift holds the center: -0 stays -0, and what is masked or multiplied by 0 makes no NaN.
TYPED_TEST(Abn, ANegativeZeroOrAnInfiniteParameterStaysWhereItIs) {
  for (const Layout layout : kLayouts) {
    AbnCase c{.shape = {2, 20, 40}, .layout = layout, .saved = Saved::kNormalized, .mean = 0};
    AbnTensors<TypeParam> t(c);
    for (int64_t i = 0; i < t.x.size(); ++i) t.x[i] = TypeParam(static_cast<float>(i % 3 - 1));
    for (int64_t i = 0; i < c.shape.c; ++i) t.weight[i] = i % 4 == 3 ? INFINITY : -1, t.bias[i] = -0.0F;
    run_cpu(c, t);
    EXPECT_TRUE(same_bytes(t.z_again.values(), t.z.values()));

    c.saved = Saved::kOutput;
    AbnTensors<TypeParam> frozen(c);
    run_cpu(c, frozen);
    for (int64_t i = 0; i < c.shape.c; ++i) frozen.bias[i] = INFINITY;
    kernels::AbnBackward backward = frozen.backward(c);
    backward.frozen_statistics = true;
    kernels::cpu::abn_backward_apply(c.problem<TypeParam>(), backward, 1);
    int64_t finite = 0;
    for (int64_t i = 0; i < frozen.dx.size(); ++i) finite += std::isfinite(static_cast<double>(frozen.dx[i]));
    EXPECT_EQ(finite, frozen.dx.size());
  }
}

// Rounding to bf16 could carry the lower half of such a NaN into its sign, which leaves 0.
TYPED_TEST(Abn, ANaNOfAnyBitsInAParameterReachesEveryValueOfItsChannelAlone) {
  constexpr int64_t kChannel = 3;
  for (const uint32_t bits : {0x7fffffffu, 0xffffffffu, 0x7fff8001u, 0x7f800001u, 0xff80ffffu, 0x7fc00000u}) {
    for (const bool in_weight : {true, false}) {
      const auto body = [&](const AbnCase& c) {
        AbnTensors<TypeParam> t(c);
        (in_weight ? t.weight : t.bias)[kChannel] = std::bit_cast<float>(bits);
        run_cpu(c, t);
        int64_t wrong = 0;
        for (int64_t i = 0; i < t.z.size(); ++i) {
          const int64_t channel = (c.layout == Layout::kNCHW ? i / c.shape.s : i) % c.shape.c;
          for (const TypeParam value : {t.z[i], t.dx[i]})
            wrong += std::isnan(static_cast<double>(value)) != (channel == kChannel);
        }
        EXPECT_EQ(wrong, 0) << c << ", bits " << std::hex << bits << (in_weight ? " in weight" : " in bias");
      };
      for (const Shape3 shape : {Shape3{2, 20, 75}, Shape3{2, 33, 49}, Shape3{2, 5, 600}}) {
        using enum Activation;
        this->for_each_kind({.shape = shape, .saved = Saved::kOutput}, body,
                            {kLeakyReLU, kELU, kSigmoid, kTanh});
        this->for_each_kind({.shape = shape, .saved = Saved::kPreActivation}, body,
                            {kLeakyReLU, kELU, kReLU6, kHardSwish, kGELU, kSiLU});
      }
    }
  }
}

TYPED_TEST(Abn, RoundsNoSumOfStoredValuesInOneDirection) {
  // 16-bit values lie on a grid. If their differences to the pivot end in bits that do not fit into the sum, all of them
  // are rounded the same way.
  for (const Shape3 shape :
       {Shape3{16, 20, 784}, Shape3{16, 8, 3192}, Shape3{16, 70, 49}, Shape3{2000, 33, 1}}) {
    for (const Layout layout : kLayouts) {
      const AbnCase c{.shape = shape, .layout = layout, .mean = 0.3};
      AbnTensors<TypeParam> got(c);
      AbnTensors<double, TypeParam> want(c);
      run_cpu(c, got);
      run_reference(c, want);
      for (int64_t i = 0; i < c.shape.c; ++i) {
        EXPECT_NEAR(got.mean[i], want.mean[i], kMeanOfStored) << "channel " << i;
        EXPECT_NEAR(got.var[i] / want.var[i], 1, kVarianceOfStored) << "channel " << i;
      }
    }
  }
}

TYPED_TEST(Abn, RecoversXhatWhereTheBiasIsSixtyTimesTheWeight) {
  if (sizeof(TypeParam) == 2) GTEST_SKIP() << "see tests/ops: the error is 60 times that of storing x-hat";
  for (const Layout layout : kLayouts)
    expect_right<TypeParam>(
        {.shape = {4, 30, 100}, .layout = layout, .weight_scale = 0.02, .bias_scale = 0.6});
}

TYPED_TEST(Abn, RepeatsItsStatisticsWhereTheFirstValuesAreNothingLikeTheRest) {
  // The first pixels of every chunk, from which the pivot is taken, lie 1e4 standard deviations away.
  for (const Shape3 shape : {Shape3{2, 20, 3000}, Shape3{120, 70, 49}}) {
    for (const Layout layout : kLayouts) {
      const AbnCase c{.shape = shape, .layout = layout};
      AbnTensors<TypeParam> got(c);
      AbnTensors<double, TypeParam> want(c);
      const int64_t stride = layout == Layout::kNCHW ? 1 : c.shape.c;
      for (int64_t channel = 0; channel < c.shape.c; ++channel) {
        for (int64_t pixel = 0; pixel < 8; ++pixel) {
          const int64_t at = (layout == Layout::kNCHW ? channel * c.shape.s : channel) + pixel * stride;
          got.x[at] = got.input(static_cast<double>(got.x[at]) + 10000);
          want.x[at] = static_cast<double>(got.x[at]);
        }
      }
      run_cpu(c, got);
      run_reference(c, want);
      EXPECT_TRUE(
          close(got.var.values(), want.var.values(), tolerance(dtype_of<accumulate_t<TypeParam>>()), c.seed));
      EXPECT_TRUE(close(got.z.values(), want.z.values(), tolerance(dtype_of<TypeParam>()), c.seed));
    }
  }
}

TYPED_TEST(Abn, GivesZeroVarianceForAConstantChannel) {
  for (const Shape3 shape : {Shape3{3, 20, 100}, Shape3{3, 70, 49}}) {
    for (const Layout layout : kLayouts) {
      const AbnCase c{.shape = shape, .layout = layout};
      AbnTensors<TypeParam> t(c);
      for (int64_t i = 0; i < t.x.size(); ++i) t.x[i] = TypeParam(1234.5678);
      run_cpu(c, t);
      for (int64_t i = 0; i < c.shape.c; ++i) {
        EXPECT_EQ(t.mean[i], static_cast<double>(TypeParam(1234.5678)));
        EXPECT_EQ(t.var[i], 0);
      }
    }
  }
}

TYPED_TEST(Abn, EqualsTheReferenceOnEitherSideOfTheMinimumAndFarDownTheFallingBranch) {
  if (sizeof(TypeParam) == 2) GTEST_SKIP() << "16-bit storage has no digits left there";
  for (const Activation activation : branched_activations())
    for (const double bias_scale : {1.0, 4.0, activation == Activation::kSiLU ? 40.0 : 2.0})
      for (const Layout layout : kLayouts)
        expect_right<TypeParam>({.shape = {4, 32, 150},
                                 .layout = layout,
                                 .activation = activation,
                                 .saved = Saved::kOutputBit,
                                 .weight_scale = bias_scale / 4,
                                 .bias_scale = bias_scale});
}

TYPED_TEST(Abn, FrozenStatisticsScaleTheGradientOnly) {
  const auto check = [](AbnCase c) {
    for (const Saved saved : {Saved::kOutput, Saved::kPreActivation, Saved::kInput}) {
      c.saved = saved;
      SCOPED_TRACE(::testing::Message() << c);
      AbnTensors<TypeParam> got(c);
      AbnTensors<double, TypeParam> want(c);
      run_cpu(c, got);
      run_reference(c, want);
      const auto frozen = [](kernels::AbnBackward t) {
        t.frozen_statistics = true;
        return t;
      };
      kernels::cpu::abn_backward_apply(c.problem<TypeParam>(), frozen(got.backward(c)), 1);
      kernels::reference::abn_backward_apply(c.problem<double>(), frozen(want.backward(c)), 1);
      EXPECT_TRUE(close(got.dx.values(), want.dx.values(), tolerance(dtype_of<TypeParam>()), c.seed));
    }
  };
  for (const Shape3 shape : {Shape3{2, 33, 49}, Shape3{3, 5, 6}, Shape3{3, 70, 49}})
    this->for_each_kind({.shape = shape}, check);
}

TYPED_TEST(Abn, SynchronizedSumsDivideByTheGivenCount) {
  const AbnCase c{.shape = {2, 20, 30}};
  AbnTensors<TypeParam> got(c);
  AbnTensors<double, TypeParam> want(c);
  run_cpu(c, got);
  run_reference(c, want);
  const double m = 4 * static_cast<double>(c.shape.per_channel());
  kernels::cpu::abn_backward_apply(c.problem<TypeParam>(), got.backward(c), m);
  kernels::reference::abn_backward_apply(c.problem<double>(), want.backward(c), m);
  EXPECT_TRUE(close(got.dx.values(), want.dx.values(), tolerance(dtype_of<TypeParam>()), c.seed));
}

}  // namespace
}  // namespace palimpsest::testing
