#include "tests/ops/abn_case.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/ops/common/backend.h"

#include <gtest/gtest.h>

#include <cmath>

namespace palimpsest::ops::tests {
namespace {

/// Returns whether the host plans slots before it knows the values, as it does for a GPU.
bool host_is_ahead() {
  return host_runs_ahead(backend_of("test", torch::zeros(1)));
}

AbnCase case_with_weight(at::ScalarType dtype, double weight, double bias) {
  AbnCase c = make_case({4, 8, 6, 7}, dtype);
  at::Tensor weights = c.weight->detach(), biases = c.bias->detach();
  weights[3] = weight;
  biases[3] = bias;
  c.weight = weights.set_requires_grad(true);
  c.bias = biases.set_requires_grad(true);
  c.name = "weight " + std::to_string(weight) + ", bias " + std::to_string(bias);
  return c;
}

TEST(AbnInvertibility, AWeightOfZeroOrNearZeroHasExactGradients) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const double weight : {0.0, 1e-30, -1e-12, 1e-7, -1e-4, 1e-2})
      for (const double bias : {0.0, 1.0, -3.0})
        if (weight != 0 || bias != 0) expect_right(case_with_weight(dtype, weight, bias), in_place);
  });
}

TEST(AbnInvertibility, AtExactlyZeroTheActivationHasTheSlopeThatLibtorchGivesIt) {
  // weight = bias = 0: y is 0 everywhere, and a slope of 1 there instead of libtorch's (the negative side's)
  // would make the channel's gradients 100 times as large.
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const auto& [activation, param] :
         {std::pair{Activation::kLeakyReLU, 0.01}, {Activation::kELU, 0.3}, {Activation::kIdentity, 0.0}}) {
      AbnCase c = case_with_weight(dtype, 0.0, 0.0);
      c.options.activation = activation;
      c.options.activation_param = param;
      expect_right(c, in_place);
    }
  });
}

TEST(AbnInvertibility, TheGradientOfTheChannelItselfIsExact) {
  // The error over the whole tensor could hide one channel of many: look at that one.
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const double weight : {0.0, 1e-6, -1.0 / 59, 1.0 / 61, -1.0}) {
      const AbnCase c = case_with_weight(dtype, weight, weight == 0 ? 0.5 : 1.0);
      const Outcome got = run_layer(c, in_place), want = run_truth(c);
      EXPECT_LE(relative_error(got.dweight[3], want.dweight[3]), tolerance_across_kinks(dtype)) << c.name;
      EXPECT_LE(relative_error(got.dx.select(1, 3), want.dx.select(1, 3)), tolerance_across_kinks(dtype))
          << c.name;
    }
  });
}

TEST(AbnInvertibility, AChannelWhoseZUnderflowsIsSaved) {
  // Softplus and sigmoid fall as exp(y): below -87 in f32 and -708 in f64, z no longer determines y.
  for_each_form([](at::ScalarType dtype, bool in_place) {
    const double lowest = dtype == at::kFloat ? -87 : -708;
    for (const Activation activation : {Activation::kSoftplus, Activation::kSigmoid})
      for (const auto& [weight, bias] :
           {std::pair{-lowest / 2, 0.0}, {lowest / 3, 5.0}, {2.0, lowest / 60}}) {
        AbnCase c = case_with_weight(dtype, weight, bias);
        c.options.activation = activation;
        reset_abn_fallback_stats();
        const Outcome got = run_layer(c, in_place), want = run_truth(c);
        const bool underflows = std::abs(weight) > 2;
        EXPECT_EQ(abn_fallback_stats().channels, underflows ? 1 : 0) << c.name;
        EXPECT_LE(relative_error(got.dx.select(1, 3), want.dx.select(1, 3)), tolerance_across_kinks(dtype))
            << c.name;
      }
  });
}

TEST(AbnInvertibility, EveryKindSavesXHatOfSuchChannelsInTheSameSlots) {
  struct Kind {
    Saved saved;
    Activation activation;
  };
  for (const auto& [saved, activation] :
       {Kind{Saved::kOutput, Activation::kLeakyReLU}, Kind{Saved::kOutputForm1, Activation::kLeakyReLU},
        Kind{Saved::kOutputBit, Activation::kGELU}, Kind{Saved::kPreActivation, Activation::kReLU},
        Kind{Saved::kPreActivation, Activation::kGELU}})
    for (const double weight : {0.0, 1e-5}) {
      for_each_form([&, saved = saved, activation = activation](at::ScalarType dtype, bool in_place) {
        for (const bool whole : {false, true}) {
          AbnCase c = case_with_weight(dtype, weight, 1.0);
          if (whole) {
            const at::NoGradGuard no_grad;
            for (const int64_t other : {0, 6, 7}) at::Tensor(*c.weight)[other] = -weight;
            for (const int64_t other : {0, 6, 7}) at::Tensor(*c.bias)[other] = 0.7;
          }
          c.options.saved = saved;
          c.options.activation = activation;
          c.name += whole ? ", whole" : "";
          reset_abn_fallback_stats();
          expect_right(c, in_place);
          const bool is_lost = weight == 0 || dtype == at::kFloat;
          EXPECT_EQ(abn_fallback_stats().channels, is_lost && !whole ? 1 : 0) << c.name;
          EXPECT_EQ(abn_fallback_stats().layers, is_lost && whole ? 1 : 0) << c.name;
          const Outcome got = run_layer(c, in_place), want = run_truth(c);
          for (const int64_t channel : {0, 3, 6, 7})
            EXPECT_LE(relative_error(got.dweight[channel], want.dweight[channel]), testing::kChannelF32)
                << c.name << ", kind " << static_cast<int>(saved) << ", channel " << channel;
        }
      });
    }
}

TEST(AbnInvertibility, AllWeightsZeroAsAtTheEndOfAResidualBlock) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    AbnCase c = make_case({4, 8, 6, 7}, dtype);
    c.weight = torch::zeros(8, dtype).set_requires_grad(true);
    c.options.activation = Activation::kIdentity;
    c.name = "all zero";
    expect_right(c, in_place);
  });
}

TEST(AbnInvertibility, ChannelsThatKeptXHatAreCounted) {
  const auto count = [](const AbnCase& c, bool in_place) {
    reset_abn_fallback_stats();
    run_layer(c, in_place);
    EXPECT_EQ(abn_fallback_stats().layers, 0);
    return abn_fallback_stats().channels;
  };
  for_each_form([&](at::ScalarType dtype, bool in_place) {
    EXPECT_EQ(count(case_with_weight(dtype, 1.0, 0.0), in_place), 0);
    EXPECT_EQ(count(case_with_weight(dtype, 0.0, 0.0), in_place), 1);
    EXPECT_EQ(count(case_with_weight(dtype, 1e-8, 1.0), in_place), 1);
    EXPECT_EQ(count(case_with_weight(dtype, 1e-8, 0.0), in_place), 0) << "without a bias no digit is lost";
    // The threshold in f32 is |bias| = 60 |weight|; f64 has digits to spare.
    // On a GPU the channel has a slot already where one step may make it non-invertible.
    EXPECT_EQ(count(case_with_weight(dtype, -1.0, 27.0), in_place), 0);
    EXPECT_EQ(count(case_with_weight(dtype, -1.0, 59.0), in_place),
              dtype == at::kFloat && host_is_ahead() ? 1 : 0);
    EXPECT_EQ(count(case_with_weight(dtype, -1.0, 61.0), in_place), dtype == at::kFloat ? 1 : 0);

    // Two of 8 are more than one in 32: the layer keeps the normalized x whole.
    AbnCase two = case_with_weight(dtype, 0.0, 0.0);
    {
      const at::NoGradGuard no_grad;
      two.weight->index_put_({torch::tensor({6})}, torch::zeros(1, dtype));
    }
    reset_abn_fallback_stats();
    expect_right(two, in_place);
    EXPECT_EQ(abn_fallback_stats().channels, 0);
    EXPECT_EQ(abn_fallback_stats().layers, 1);
  });
  reset_abn_fallback_stats();
  EXPECT_EQ(abn_fallback_stats().layers + abn_fallback_stats().channels, 0);
}

TEST(AbnInvertibility, ALayerThatRunsAgainForItsSegmentIsNotCountedAgain) {
  AbnCase whole = case_with_weight(at::kFloat, 0.0, 0.0);
  whole.weight = torch::zeros(8).set_requires_grad(true);
  for (const AbnCase& c : {case_with_weight(at::kFloat, 0.0, 0.0), whole}) {
    reset_abn_fallback_stats();
    run_layer(c, false);
    const int64_t fallbacks = abn_fallback_stats().layers, channels = abn_fallback_stats().channels;
    EXPECT_EQ(fallbacks + channels, 1);
    const RecomputingGuard again;
    run_layer(c, false);
    EXPECT_EQ(abn_fallback_stats().layers, fallbacks);
    EXPECT_EQ(abn_fallback_stats().channels, channels);
  }
}

TEST(AbnInvertibility, NothingIsKeptOrCountedWithoutABackwardPass) {
  const AbnCase c = case_with_weight(at::kFloat, 0.0, 0.0);
  reset_abn_fallback_stats();
  const torch::NoGradGuard no_grad;
  abn(c.base, {c.weight, c.bias, c.running_mean, c.running_var});
  EXPECT_EQ(abn_fallback_stats().layers + abn_fallback_stats().channels, 0);
}

TEST(AbnInvertibility, TheChannelsXHatIsKeptBesideZForThatStepOnly) {
  const at::Tensor x = torch::randn({2, 8, 16, 16}).set_requires_grad(true);
  const int64_t bytes = x.numel() * 4, vectors = 8 * 8;  // inv_std in f64
  const int64_t channel = bytes / 8, index = 8;          // on a GPU the host shares the index between passes
  for (const double weight : {0.0, 1.0}) {
    at::Tensor weights = torch::ones(8);
    weights[5] = weight;
    abn(x, {weights});  // on a GPU the host keeps a copy of weights
    const int64_t before = memory::memory_stats().current_bytes;
    const at::Tensor z = abn(x, {weights});
    const int64_t kept = memory::memory_stats().current_bytes - before - bytes - vectors;
    EXPECT_GE(kept, weight == 0 ? channel : 0);
    EXPECT_LE(kept, weight == 0 ? channel + index : 0);
  }
}

TEST(AbnInvertibility, EluWhoseNegativeSideSaturatesKeepsXHat) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const auto& [weight, bias] :
         std::vector<std::pair<double, double>>{{6.0, 0.0}, {1.0, -20.0}, {2.0, -30.0}, {40.0, 1.0}}) {
      AbnCase c = case_with_weight(dtype, weight, bias);
      c.options.activation = Activation::kELU;
      c.options.activation_param = 1.0;
      expect_right(c, in_place);
      // Where the whole channel saturates, its own gradient is below exp(-20) of the others: f32 has none of
      // it.
      if (bias < 0) continue;
      const Outcome got = run_layer(c, in_place), want = run_truth(c);
      EXPECT_LE(relative_error(got.dx.select(1, 3), want.dx.select(1, 3)), tolerance_across_kinks(dtype))
          << c.name;
    }
  });
}

TEST(AbnInvertibility, ABranchWhoseFlatEndsHideYKeepsXHat) {
  // Deep on the falling branch z underflows; all around the minimum it hardly moves. Both in the gradients of
  // the channel itself, against a tensor of others.
  struct Hidden {
    double weight, bias;
    bool f32, f64;  // whether that storage cannot tell
  };
  for (const auto activation : {Activation::kGELU, Activation::kGELUTanh}) {
    const bool tanh = activation == Activation::kGELUTanh;  // whose tail is the shorter one
    for (const Hidden& h :
         {Hidden{1, 0, false, false}, Hidden{3, -6, true, tanh}, Hidden{0.5, -12, true, false},
          Hidden{12, 0, true, true}, Hidden{0.05, -0.75, true, false}, Hidden{0.05, -0.4, false, false}}) {
      for_each_form([&](at::ScalarType dtype, bool in_place) {
        AbnCase c = case_with_weight(dtype, h.weight, h.bias);
        {
          const at::NoGradGuard no_grad;
          for (const int64_t other : {0, 1, 2, 4, 5, 6, 7}) c.weight->select(0, other).fill_(1);
          for (const int64_t other : {0, 1, 2, 4, 5, 6, 7}) c.bias->select(0, other).zero_();
        }
        c.options.activation = activation;
        c.options.saved = Saved::kOutputBit;
        reset_abn_fallback_stats();
        expect_right(c, in_place);
        EXPECT_EQ(abn_fallback_stats().channels, (dtype == at::kFloat ? h.f32 : h.f64) ? 1 : 0) << c.name;
        const Outcome got = run_layer(c, in_place), want = run_truth(c);
        if (want.dx.select(1, 3).norm().item<double>() < 1e-3 * want.dx.norm().item<double>()) return;
        EXPECT_LE(relative_error(got.dx.select(1, 3), want.dx.select(1, 3)),
                  2 * tolerance_across_kinks(dtype))
            << c.name;
      });
    }
  }
}

TEST(AbnInvertibility, StridedParametersAreReadAsTheyAre) {
  const at::Tensor wide = torch::ones({4, 2});
  wide.select(1, 0).zero_();  // every second value, which a reader of dense memory would see
  const auto saves_all = [](const OptionalTensor& weight, const OptionalTensor& bias, Activation activation) {
    reset_abn_fallback_stats();
    AbnOptions options;
    options.activation = activation;
    abn(torch::randn({2, 4, 5}).set_requires_grad(true), {weight, bias}, options);
    EXPECT_EQ(abn_fallback_stats().channels, 0);
    return abn_fallback_stats().layers == 1;
  };
  EXPECT_FALSE(saves_all(wide.select(1, 1), std::nullopt, Activation::kIdentity));
  EXPECT_TRUE(saves_all(wide.select(1, 0), std::nullopt, Activation::kIdentity));
  EXPECT_FALSE(saves_all(std::nullopt, std::nullopt, Activation::kELU));
  EXPECT_TRUE(saves_all(std::nullopt, torch::full(4, 100.0), Activation::kIdentity));
}

}  // namespace
}  // namespace palimpsest::ops::tests
