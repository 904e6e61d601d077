// The promises of the CPU kernels beside values: they write in place, give the same bytes for separate calls
// and for any number of threads, and keep not-a-number in its channel.
#include "palimpsest/base/parallel.h"
#include "tests/kernels/abn_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace palimpsest::testing {
namespace {

// One panel and many, one segment and many, tails and none; small planes side by side.
const Shape3 kShapes[] = {{3, 20, 49},   {2, 3, 70000}, {5, 33, 1},    {1, 2, 140000}, {3, 530, 100},
                          {40, 5, 3600}, {32, 70, 49},  {150, 130, 4}, {2, 1060, 30},  {70, 2050, 1}};

// The second activation has two branches: the bits of neighbouring rows share bytes.
template <class Body>
void for_each_case(const Body& body) {
  for (const Shape3 shape : kShapes) {
    for (const Layout layout : kLayouts) {
      for (const bool bits : {false, true}) {
        AbnCase c{.shape = shape, .layout = layout};
        if (bits) c.activation = Activation::kSiLU, c.saved = Saved::kOutputBit;
        SCOPED_TRACE(::testing::Message() << c);
        body(c);
      }
    }
  }
}

template <class T>
void expect_in_place_is_the_same(const AbnCase& c) {
  AbnTensors<T> apart(c), over = apart;
  run_cpu(c, apart);
  kernels::AbnForward forward = over.forward(c);
  T* const target = over.x.data();
  // The tensor that is saved for backward is written over x.
  (c.saves_aside() ? forward.saved_values : forward.z) = target;
  kernels::cpu::abn_forward(c.problem<T>(), kEps, forward);
  EXPECT_TRUE(same_bytes(over.x.values(), (c.saves_aside() ? apart.saved_values : apart.z).values()))
      << "over x";
  if (c.saves_aside()) {
    EXPECT_TRUE(same_bytes(over.z.values(), apart.z.values())) << "z";
  }
  kernels::AbnBackward backward = over.backward(c);
  backward.saved_values = target;
  backward.dx = over.dz.data();
  kernels::cpu::abn_backward(c.problem<T>(), backward);
  EXPECT_TRUE(same_bytes(over.dz.values(), apart.dx.values())) << "dx over dz";
  EXPECT_TRUE(same_bytes(over.dresidual.values(), apart.dresidual.values())) << "dresidual";
  EXPECT_TRUE(same_bytes(over.branch.values(), apart.branch.values())) << "branch";
}

TEST(AbnContract, WritingOverTheInputGivesTheSameBytes) {
  for_each_case([](AbnCase c) {
    for (const Saved saved : {Saved::kOutput, Saved::kPreActivation, Saved::kNormalized, Saved::kOutputBit}) {
      if (!can_save(c.activation, saved)) continue;
      c.saved = saved;
      expect_in_place_is_the_same<float>(c);
      expect_in_place_is_the_same<BFloat16>(c);
    }
  });
}

// With streaming stores, if it is not in place.
TEST(AbnContract, AResultTooLargeForTheCachesGivesTheSameBytes) {
  expect_in_place_is_the_same<float>({.shape = {4, 5401, 196}});  // strips
  for (const Layout layout : kLayouts)
    for (const int64_t misaligned_by : {0, 3}) {
      // Each kind at each start, for one of the two types: a case takes a second.
      const bool aligned = misaligned_by == 0;
      expect_in_place_is_the_same<float>({.shape = {2, 66, 33333},
                                          .layout = layout,
                                          .saved = aligned ? Saved::kOutput : Saved::kPreActivation,
                                          .misaligned_by = misaligned_by});
      expect_in_place_is_the_same<BFloat16>({.shape = {2, 66, 66666},
                                             .layout = layout,
                                             .saved = aligned ? Saved::kPreActivation : Saved::kOutput,
                                             .misaligned_by = misaligned_by});
    }
  // Rows of columns and of strips that begin an odd number of values apart: every other one is streamed in bf16.
  for (const int64_t misaligned_by : {0, 3}) {
    expect_in_place_is_the_same<BFloat16>(
        {.shape = {1, 1001, 9001}, .layout = Layout::kChannelsLast, .misaligned_by = misaligned_by});
    expect_in_place_is_the_same<BFloat16>({.shape = {64, 3001, 49}, .misaligned_by = misaligned_by});
  }
  for (const Layout layout : kLayouts)
    for (const bool has_residual : {false, true})
      expect_in_place_is_the_same<float>({.shape = {2, 1056, 2083},
                                          .layout = layout,
                                          .activation = Activation::kSiLU,
                                          .saved = Saved::kOutputBit,
                                          .has_residual = has_residual});
}

// With streaming stores: of dx and dresidual if they lie alike in their cache lines and dx is not dz, else of one.
template <class T>
void expect_gradient_of_residual(AbnCase c, int64_t dresidual_misaligned_by) {
  using A = accumulate_t<T>;
  c.has_residual = true;
  SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << c << ", dresidual misaligned by "
                                    << dresidual_misaligned_by);
  AbnTensors<T> t(c);
  kernels::cpu::abn_forward(c.problem<T>(), kEps, t.forward(c));
  const int64_t count = c.shape.elements();
  Buffer<T> want(count), got(count, dresidual_misaligned_by);
  const A slope = static_cast<A>(c.activation_param);
  for (int64_t i = 0; i < count; ++i) {
    const bool is_cut = c.relu_residual && !(static_cast<double>(t.residual[i]) > 0);
    const A dz = static_cast<A>(static_cast<double>(t.dz[i]));
    const A dy = is_cut ? A(0) : static_cast<double>(t.z[i]) > 0 ? dz : dz * slope;
    want[i] = static_cast<T>(static_cast<double>(dy));
  }
  kernels::AbnBackward backward = t.backward(c);
  backward.dresidual = got.data();
  kernels::cpu::abn_backward(c.problem<T>(), backward);
  EXPECT_TRUE(same_bytes(got.values(), want.values())) << "dx apart";
  for (int64_t i = 0; i < count; ++i) got[i] = static_cast<T>(1.0);
  backward.dx = t.dz.data();
  kernels::cpu::abn_backward(c.problem<T>(), backward);
  EXPECT_TRUE(same_bytes(got.values(), want.values())) << "dx over dz";
  EXPECT_TRUE(same_bytes(t.dz.values(), t.dx.values())) << "dx";
}

TEST(AbnContract, ALargeGradientOfAResidualIsDyWhereverItLies) {
  for (const int64_t dresidual_misaligned_by : {0, 1, 3}) {
    // Planes whose rows are long, and columns of whole lines.
    expect_gradient_of_residual<float>({.shape = {2, 66, 33333}}, dresidual_misaligned_by);
    expect_gradient_of_residual<Float16>({.shape = {1, 64, 131999}, .layout = Layout::kChannelsLast},
                                         dresidual_misaligned_by);
    // Columns and strips whose rows begin an odd number of values apart.
    for (const int64_t misaligned_by : {0, 3}) {
      expect_gradient_of_residual<BFloat16>({.shape = {1, 1001, 9001},
                                             .layout = Layout::kChannelsLast,
                                             .relu_residual = true,
                                             .misaligned_by = misaligned_by},
                                            dresidual_misaligned_by);
      expect_gradient_of_residual<BFloat16>({.shape = {64, 3001, 49}, .misaligned_by = misaligned_by},
                                            dresidual_misaligned_by);
    }
  }
  expect_gradient_of_residual<double>({.shape = {1, 1000, 2201}, .layout = Layout::kChannelsLast}, 0);
}

TEST(AbnContract, InputsThatAreNotWrittenOverStayAsTheyAre) {
  for_each_case([](const AbnCase& c) {
    AbnTensors<float> untouched(c), used = untouched;
    run_cpu(c, used);
    EXPECT_TRUE(same_bytes(used.x.values(), untouched.x.values()));
    EXPECT_TRUE(same_bytes(used.dz.values(), untouched.dz.values()));
  });
}

TEST(AbnContract, StatisticsThenApplyEqualsForward) {
  for_each_case([](const AbnCase& c) {
    AbnTensors<float> whole(c), split = whole;
    run_cpu(c, whole);
    kernels::cpu::abn_statistics(c.problem<float>(), split.x.data(), split.mean.data(), split.var.data());
    EXPECT_TRUE(same_bytes(split.mean.values(), whole.mean.values()));
    EXPECT_TRUE(same_bytes(split.var.values(), whole.var.values()));
    kernels::AbnForward forward = split.forward(c);
    forward.inv_std = whole.inv_std.data();
    kernels::cpu::abn_apply(c.problem<float>(), forward);
    EXPECT_TRUE(same_bytes(split.z.values(), whole.z.values()));
    EXPECT_TRUE(same_bytes(split.branch.values(), whole.branch.values()));
  });
}

TEST(AbnContract, ReduceThenApplyEqualsBackward) {
  for_each_case([](const AbnCase& c) {
    AbnTensors<float> whole(c), split = whole;
    run_cpu(c, whole);
    kernels::AbnBackward backward = split.backward(c);
    backward.saved_values = whole.z.data();
    backward.branch = whole.branch.data();
    backward.inv_std = whole.inv_std.data();
    kernels::cpu::abn_backward_reduce(c.problem<float>(), backward);
    EXPECT_TRUE(same_bytes(split.sum_dy.values(), whole.sum_dy.values()));
    EXPECT_TRUE(same_bytes(split.sum_dy_xhat.values(), whole.sum_dy_xhat.values()));
    kernels::cpu::abn_backward_apply(c.problem<float>(), backward,
                                     static_cast<double>(c.shape.per_channel()));
    EXPECT_TRUE(same_bytes(split.dx.values(), whole.dx.values()));
  });
}

template <class T>
void expect_frozen_backward_is_its_two_calls(const AbnCase& c) {
  SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << c);
  AbnTensors<T> whole(c);
  kernels::cpu::abn_forward(c.problem<T>(), kEps, whole.forward(c));
  AbnTensors<T> split = whole;
  kernels::AbnBackward backward = split.backward(c);
  kernels::cpu::abn_backward_reduce(c.problem<T>(), backward);
  backward.frozen_statistics = true;
  kernels::cpu::abn_backward_apply(c.problem<T>(), backward, 1);

  backward = whole.backward(c);
  backward.frozen_statistics = true;
  backward.dx = whole.dz.data();
  kernels::cpu::abn_backward(c.problem<T>(), backward);
  EXPECT_TRUE(same_bytes(whole.sum_dy.values(), split.sum_dy.values()));
  EXPECT_TRUE(same_bytes(whole.sum_dy_xhat.values(), split.sum_dy_xhat.values()));
  EXPECT_TRUE(same_bytes(whole.dz.values(), split.dx.values())) << "dx over dz, from which sums were taken";
  EXPECT_TRUE(same_bytes(whole.dresidual.values(), split.dresidual.values()));
  EXPECT_TRUE(same_bytes(whole.z_again.values(), split.z_again.values()));
}

TEST(AbnContract, ReduceThenApplyEqualsBackwardWithFrozenStatistics) {
  for_each_case([](AbnCase c) {
    expect_frozen_backward_is_its_two_calls<float>(c);
    if (c.saved == Saved::kOutputBit) return;
    c.activation = Activation::kELU, c.activation_param = 1;
    expect_frozen_backward_is_its_two_calls<BFloat16>(c);
    c.has_residual = true;
    expect_frozen_backward_is_its_two_calls<float>(c);
    c.has_residual = false;
    c.activation = Activation::kGELU, c.saved = Saved::kPreActivation;
    expect_frozen_backward_is_its_two_calls<Float16>(c);
  });
}

TEST(AbnContract, FrozenStatisticsFollowFromTheRunningOnes) {
  const auto expect = [](auto zero) {
    using T = decltype(zero);
    const std::vector<T> mean = {T(0.5), T(-3), T(0)}, var = {T(0), T(2), T(0.25)};
    double got_mean[3], got_inv_std[3];
    kernels::cpu::abn_frozen_statistics(dtype_of<T>(), 3, kEps, mean.data(), var.data(), got_mean,
                                        got_inv_std);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(got_mean[i], static_cast<double>(mean[i]));
      EXPECT_EQ(got_inv_std[i], 1 / std::sqrt(static_cast<double>(var[i]) + kEps));
    }
  };
  expect(0.f);
  expect(0.);
  expect(Float16());
  expect(BFloat16());
}

#ifdef _OPENMP
TEST(AbnContract, AnyNumberOfThreadsGivesTheSameBytes) {
  const int threads_before = omp_get_max_threads();
  for_each_case([](const AbnCase& c) {
    omp_set_num_threads(1);
    const AbnTensors<float> fresh(c);
    AbnTensors<float> want = fresh;
    run_cpu(c, want);
    for (const int threads : {2, 3, 7}) {
      omp_set_num_threads(threads);
      AbnTensors<float> got = fresh;
      run_cpu(c, got);
      EXPECT_TRUE(same_bytes(got.z.values(), want.z.values())) << threads << " threads";
      EXPECT_TRUE(same_bytes(got.branch.values(), want.branch.values())) << threads << " threads";
      EXPECT_TRUE(same_bytes(got.var.values(), want.var.values())) << threads << " threads";
      EXPECT_TRUE(same_bytes(got.dx.values(), want.dx.values())) << threads << " threads";
      EXPECT_TRUE(same_bytes(got.sum_dy_xhat.values(), want.sum_dy_xhat.values())) << threads << " threads";
    }
  });
  omp_set_num_threads(threads_before);
}
#endif

// Every activation, with every tensor that it can start backward from.
template <class Body>
void for_each_activation(const Body& body) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations) {
    for (const Saved saved : kAllSaved)
      if (can_save(activation, saved)) body(activation, saved);
  }
}

TEST(AbnContract, NotANumberStaysInItsChannel) {
  for (const double poison :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for_each_activation([&](Activation activation, Saved saved) {
      for (const int64_t channels : {21, 70}) {  // planes, and strips
        for (const Layout layout : kLayouts) {
          const AbnCase c{.shape = {2, channels, 37},
                          .layout = layout,
                          .activation = activation,
                          .activation_param = 0.5,
                          .saved = saved};
          SCOPED_TRACE(::testing::Message() << c << ", " << poison << " in x");
          const auto channel_of = [&](int64_t i) {
            return layout == Layout::kNCHW ? i / c.shape.s % c.shape.c : i % c.shape.c;
          };
          AbnTensors<float> t(c);
          const int64_t at = 20 * c.shape.c + 4;
          t.x[at] = static_cast<float>(poison);
          run_cpu(c, t);
          for (int64_t i = 0; i < t.z.size(); ++i) {
            EXPECT_EQ(std::isnan(t.z[i]), channel_of(i) == channel_of(at)) << "z, element " << i;
            EXPECT_EQ(std::isnan(t.dx[i]), channel_of(i) == channel_of(at)) << "dx, element " << i;
          }

          AbnTensors<float> in_gradient(c);
          in_gradient.dz[at] = static_cast<float>(poison);
          run_cpu(c, in_gradient);
          EXPECT_FALSE(std::isfinite(in_gradient.sum_dy[channel_of(at)]));
          for (int64_t i = 0; i < t.z.size(); ++i)
            EXPECT_EQ(!std::isfinite(in_gradient.dx[i]), channel_of(i) == channel_of(at))
                << "dx, element " << i;
        }
      }
    });
  }
}

// As with libtorch: sigmoid ends at 0, SiLU at -0, and 0 times -infinity is not a number.
TEST(AbnContract, ExponentialsOfVeryNegativeValuesAreZero) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Layout layout : kLayouts) {
    AbnCase c{.shape = {1, 1, 40}, .layout = layout, .saved = Saved::kPreActivation};
    AbnTensors<float> t(c);
    for (int64_t i = 0; i < t.x.size(); ++i)
      t.saved_values[i] = i == 39 ? 0.0f : i % 2 ? -1e30f : -104.0f - static_cast<float>(i);
    const auto run = [&](Activation activation) {
      c.activation = activation;
      kernels::cpu::abn_recompute_output(c.problem<float>(), t.forward(c));
    };
    run(Activation::kSigmoid);
    for (int64_t i = 0; i < 39; ++i) EXPECT_EQ(t.z[i], 0.0f) << "of " << t.saved_values[i];
    EXPECT_EQ(t.z[39], 0.5f);
    run(Activation::kSiLU);
    for (int64_t i = 0; i < 39; ++i) EXPECT_EQ(t.z[i], 0.0f) << "of " << t.saved_values[i];
    for (int64_t i = 0; i < 39; ++i) t.saved_values[i] = static_cast<float>(-kInfinity);
    run(Activation::kSigmoid);
    EXPECT_EQ(t.z[3], 0.0f);
    run(Activation::kSiLU);
    for (int64_t i = 0; i < 39; ++i) EXPECT_TRUE(std::isnan(t.z[i]));
    EXPECT_EQ(t.z[39], 0.0f);
  }
}

TEST(AbnContract, TheGradientOfAResidualThatIsNotANumberPassesItsReLU) {  // as with libtorch's ReLU
  const AbnCase c{
      .shape = {2, 3, 40}, .saved = Saved::kPreActivation, .has_residual = true, .relu_residual = true};
  for (const bool is_reference : {false, true}) {
    AbnTensors<float> t(c);
    t.residual[57] = std::numeric_limits<float>::quiet_NaN();
    is_reference ? run_reference(c, t) : run_cpu(c, t);
    EXPECT_TRUE(std::isfinite(t.dresidual[57]));
    EXPECT_NE(t.dresidual[57], 0);
  }
}

TEST(AbnContract, SaturationGivesFiniteGradients) {
  for_each_activation([](Activation activation, Saved saved) {
    for (const double bias_scale : {200.0, 2000.0}) {
      const AbnCase c{.shape = {4, 16, 50},
                      .activation = activation,
                      .activation_param = default_param(activation),
                      .saved = saved,
                      .bias_scale = bias_scale};
      SCOPED_TRACE(::testing::Message() << c);
      AbnTensors<float> t(c);
      run_cpu(c, t);
      for (int64_t i = 0; i < t.dx.size(); ++i) ASSERT_TRUE(std::isfinite(t.dx[i])) << "element " << i;
      AbnTensors<Float16> half(c);
      run_cpu(c, half);
      for (int64_t i = 0; i < half.dx.size(); ++i)
        ASSERT_TRUE(std::isfinite(static_cast<double>(half.dx[i]))) << "f16, element " << i;
    }
  });
}

}  // namespace
}  // namespace palimpsest::testing
