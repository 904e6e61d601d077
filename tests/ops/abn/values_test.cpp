#include "tests/ops/abn_case.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

const std::vector<std::pair<Activation, double>> kActivations{{Activation::kLeakyReLU, 0.01},
                                                              {Activation::kLeakyReLU, 1.0},
                                                              {Activation::kELU, 1.0},
                                                              {Activation::kELU, 0.3},
                                                              {Activation::kIdentity, 0.0}};

/// Ranks 2 to 5, sizes around the vector width, one channel, one pixel, one image.
const std::vector<std::vector<int64_t>> kShapes{{64, 19},     {7, 1},        {4, 6, 31},
                                                {4, 5, 7, 3}, {2, 33, 9, 9}, {3, 1, 8, 8},
                                                {8, 5, 1, 1}, {1, 4, 6, 6},  {2, 3, 4, 5, 3}};

TEST(AbnValues, MatchBatchNormAndActivationInDoubleForEveryActivationAndRank) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const auto& [activation, param] : kActivations) {
      for (const auto& shape : kShapes) {
        AbnCase c = make_case(shape, dtype);
        c.options.activation = activation;
        c.options.activation_param = param;
        c.name = "shape " + c10::str(at::IntArrayRef(shape)) + ", activation " +
                 c10::str(static_cast<int>(activation));
        expect_right(c, in_place);
      }
    }
  });
}

TEST(AbnValues, MatchForALargeMean) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    AbnCase c = make_case({4, 8, 16, 16}, at::kDouble);
    // Multiples of 1/64 near 1000 are exact in f32, so that the truth sees the same input.
    c.base = c.base.mul(64).round().div(64).add(1000).to(dtype);
    for (auto* t : {&c.weight, &c.bias, &c.running_mean, &c.running_var})
      *t = (*t)->detach().to(dtype).set_requires_grad((*t)->requires_grad());
    c.dz = c.dz.to(dtype);
    c.name = "mean 1000";
    const Outcome got = run_layer(c, in_place), want = run_truth(c);
    const double limit = dtype == at::kDouble ? tolerance_across_kinks(dtype) : testing::kLargeMeanF32;
    EXPECT_LE(relative_error(got.z, want.z), limit);
    EXPECT_LE(relative_error(got.dx, want.dx), limit);
  });
}

TEST(AbnValues, MatchWithoutWeightBiasOrRunningStatistics) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (int present = 0; present < 8; ++present) {
      AbnCase c = make_case({4, 7, 6, 5}, dtype);
      if (!(present & 1)) c.weight.reset();
      if (!(present & 2)) c.bias.reset();
      if (!(present & 4)) c.running_mean.reset(), c.running_var.reset();
      c.name = "present " + std::to_string(present);
      expect_right(c, in_place);
    }
  });
}

TEST(AbnValues, MoveTheRunningStatisticsByTheMomentum) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const double momentum : {0.0, 0.1, 0.75, 1.0}) {
      AbnCase c = make_case({2, 7, 1, 3}, dtype);  // 6 values per channel: the factor m/(m-1) is 1.2
      c.options.momentum = momentum;
      c.name = "momentum " + std::to_string(momentum);
      expect_right(c, in_place);
    }
  });
}

TEST(AbnValues, UseTheRunningStatisticsWhenFrozenAndDifferentiateThroughThem) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const auto& [activation, param] : kActivations) {
      AbnCase c = make_case({3, 9, 5, 4}, dtype);
      c.options.training = false;
      c.options.activation = activation;
      c.options.activation_param = param;
      c.name = "frozen";
      expect_right(c, in_place);
      EXPECT_TRUE(run_layer(c, in_place).running_mean.equal(*c.running_mean)) << "frozen statistics moved";
      c.base = c.base.narrow(0, 0, 1)
                   .narrow(2, 0, 1)
                   .narrow(3, 0, 1)
                   .contiguous();  // one value per channel is enough
      c.dz = c.dz.narrow(0, 0, 1).narrow(2, 0, 1).narrow(3, 0, 1).contiguous();
      expect_right(c, in_place);
    }
  });
}

TEST(AbnValues, RunningStatisticsOfTwoDtypesKeepAllDigits) {
  AbnCase c = make_case({3, 9, 5, 4}, at::kBFloat16);
  c.options.training = false;
  const auto layer = [&](const at::Tensor& mean, const at::Tensor& var) {
    return abn(c.base, {c.weight, c.bias, mean, var}, c.options);
  };
  const at::Tensor mean = c.running_mean->to(at::kBFloat16), var = c.running_var->to(at::kFloat) * 1.003;
  const at::Tensor want = layer(mean.to(at::kFloat), var);
  EXPECT_TRUE(layer(mean, var).equal(want));
  EXPECT_FALSE(layer(mean, var.to(at::kBFloat16)).equal(want));
  EXPECT_TRUE(layer(var.to(at::kFloat), mean.abs()).equal(layer(var, mean.abs().to(at::kFloat))));
}

TEST(AbnValues, RunningStatisticsOf16BitsAreRoundedOnce) {
  torch::manual_seed(4);
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    // A variance of 1e5 is no number of f16, but a tenth of it is.
    const at::Tensor x = (torch::randn({4, 5, 20, 20}) * 320).to(dtype);
    const at::Tensor mean = torch::randn({5}).to(dtype), var = (torch::rand({5}) + 0.5).to(dtype);
    const at::Tensor mean_before = mean.to(at::kDouble), var_before = var.to(at::kDouble);
    abn(x, {std::nullopt, std::nullopt, mean, var}, {});
    const auto [batch_var, batch_mean] =
        at::var_mean(x.to(at::kDouble), at::IntArrayRef{0, 2, 3}, /*unbiased=*/true);
    EXPECT_TRUE(mean.equal(mean_before.lerp(batch_mean, 0.1).to(dtype)));
    EXPECT_TRUE(var.equal(var_before.lerp(batch_var, 0.1).to(dtype)));
    EXPECT_TRUE(var.isfinite().all().item<bool>());
  }
}

TEST(AbnValues, AreTheSameWithoutGradients) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const bool training : {false, true}) {
      AbnCase c = make_case({3, 9, 5, 4}, dtype);
      c.options.training = training;
      const Outcome recorded = run_layer(c, in_place);
      const torch::NoGradGuard no_grad;
      at::Tensor x = c.base.clone();
      const OptionalTensor mean = c.running_mean->clone(), var = c.running_var->clone();
      const at::Tensor z = in_place ? abn_(x, {c.weight, c.bias, mean, var}, c.options)
                                    : abn(x, {c.weight, c.bias, mean, var}, c.options);
      EXPECT_TRUE(z.equal(recorded.z));
      EXPECT_FALSE(z.requires_grad());
      EXPECT_TRUE(mean->equal(recorded.running_mean));
      EXPECT_TRUE(var->equal(recorded.running_var));
    }
  });
}

TEST(AbnValues, HaveTheSameBytesTwiceAndForAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  for_each_form([&](at::ScalarType dtype, bool in_place) {
    for (const bool channels_last : {false, true}) {
      AbnCase c = make_case({8, 37, 29, 31}, dtype);
      if (channels_last) c.base = c.base.contiguous(at::MemoryFormat::ChannelsLast);
      const Outcome first = run_layer(c, in_place);
      for (const int n : {1, 2, 3}) {
        at::set_num_threads(n);
        const Outcome again = run_layer(c, in_place);
        EXPECT_TRUE(again.z.equal(first.z));
        EXPECT_TRUE(again.dx.equal(first.dx));
        EXPECT_TRUE(again.dweight.equal(first.dweight));
        EXPECT_TRUE(again.dbias.equal(first.dbias));
        EXPECT_TRUE(again.running_var.equal(first.running_var));
      }
      at::set_num_threads(threads);
    }
  });
}

TEST(AbnValues, InPlaceAndOutOfPlaceHaveTheSameBytes) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const AbnCase c = make_case({4, 11, 13, 7}, dtype);
    const Outcome fresh = run_layer(c, false), written = run_layer(c, true);
    EXPECT_TRUE(fresh.z.equal(written.z));
    EXPECT_TRUE(fresh.dx.equal(written.dx));
    EXPECT_TRUE(fresh.dweight.equal(written.dweight));
  }
}

TEST(AbnValues, OfAnEmptyBatchAreEmptyWhenFrozen) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const auto& shape : {std::vector<int64_t>{0, 3, 4, 4}, {2, 3, 0, 4}, {0, 3}}) {
      AbnCase c = make_case(shape, dtype);
      c.options.training = false;
      const Outcome got = run_layer(c, in_place);
      EXPECT_EQ(got.z.sizes(), at::IntArrayRef(shape));
      EXPECT_EQ(got.dx.sizes(), at::IntArrayRef(shape));
      EXPECT_TRUE(got.dweight.equal(torch::zeros(3, dtype)));
      EXPECT_TRUE(got.dbias.equal(torch::zeros(3, dtype)));
    }
  });
}

TEST(AbnValues, AreReachedByTheOperatorsNameInAnyProgramThatLinksTheLibrary) {
  for (const char* name : {"palimpsest::abn", "palimpsest::abn_"}) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    const at::Tensor x = torch::randn({4, 3, 5, 5});
    const at::Tensor want = abn(x, {});
    torch::jit::Stack stack{x.clone(), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue()};
    for (size_t i = stack.size(); i < op.schema().arguments().size(); ++i)
      stack.push_back(*op.schema().arguments()[i].default_value());
    op.callBoxed(stack);
    EXPECT_TRUE(stack.at(0).toTensor().equal(want)) << name;
  }
}

}  // namespace
}  // namespace palimpsest::ops::tests
