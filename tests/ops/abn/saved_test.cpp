// Every tensor that the layer may save for backward, every activation, residuals, 16-bit storage: values and
// gradients against libtorch's own layers in f64.
#include "palimpsest/kernels/activation.h"
#include "palimpsest/memory/counting_allocator.h"
#include "tests/ops/abn_case.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

// Every activation with everything it can saved.
template <class Body>
void for_each_pair(const Body& body) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations)
    for (const Saved saved : kAllSaved)
      if (can_save(activation, saved)) body(activation, std::string(name), saved);
}

AbnCase make(at::ScalarType dtype, Activation activation, const std::string& name, Saved saved,
             int residual) {
  AbnCase c = make_case({4, 6, 5, 7}, dtype);
  c.name =
      name + ", saved " + std::to_string(static_cast<int>(saved)) + ", residual " + std::to_string(residual);
  c.options.activation = activation;
  c.options.activation_param = activation == Activation::kELU ? 0.8 : 0.1;
  c.options.saved = saved;
  if (residual > 0) c.residual = torch::randn(c.base.sizes(), at::kDouble).to(dtype).set_requires_grad(true);
  c.options.relu_residual = residual == 2;
  return c;
}

TEST(AbnSaved, EveryPairHasTheGradientsOfThePlainLayers) {
  for_each_pair([](Activation activation, const std::string& name, Saved saved) {
    for (const int residual : {0, 1, 2}) {
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        const AbnCase c = make(dtype, activation, name, saved, residual);
        expect_right(c, false);
        if (saved != Saved::kInput) expect_right(c, true);
      }
    }
  });
}

TEST(AbnSaved, SixteenBitStorageHasThemToo) {
  for_each_pair([](Activation activation, const std::string& name, Saved saved) {
    for (const auto dtype : {at::kHalf, at::kBFloat16}) {
      const AbnCase c = make(dtype, activation, name, saved, 0);
      expect_right(c, false);
      if (saved != Saved::kInput) expect_right(c, true);
    }
  });
}

TEST(AbnSaved, ParametersMayBeInSixteenBitsToo) {
  const auto layer = [](at::ScalarType parameters) {
    torch::manual_seed(1);
    at::Tensor x = torch::randn({4, 6, 5}).to(at::kBFloat16).set_requires_grad(true);
    const auto vector = [&] { return torch::rand(6).add(0.5).to(at::kBFloat16).to(parameters); };
    const at::Tensor weight = vector().set_requires_grad(true), bias = vector().set_requires_grad(true);
    const at::Tensor mean = vector(), var = vector();
    at::Tensor z = abn(x, {weight, bias, mean, var});
    z.sum().backward();
    EXPECT_EQ(weight.grad().scalar_type(), parameters);
    EXPECT_EQ(var.scalar_type(), parameters);
    return std::vector<at::Tensor>{z, x.grad(), weight.grad(), var};
  };
  const auto narrow = layer(at::kBFloat16), wide = layer(at::kFloat);
  EXPECT_TRUE(torch::equal(narrow[0], wide[0]));
  EXPECT_TRUE(torch::equal(narrow[1], wide[1]));
  EXPECT_TRUE(torch::equal(narrow[2], wide[2].to(at::kBFloat16)));
  EXPECT_LE(relative_error(narrow[3], wide[3]), tolerance_across_kinks(at::kBFloat16));
}

TEST(AbnSaved, FrozenStatisticsHaveTheGradientsOfThePlainLayers) {
  for_each_pair([](Activation activation, const std::string& name, Saved saved) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      AbnCase c = make(dtype, activation, name, saved, 1);
      c.options.training = false;
      expect_right(c, false);
    }
  });
}

TEST(AbnSaved, AResidualThatHidesXIsNoticed) {
  // The sum is a hundred times the layer's own part: nothing of x-hat is left in z.
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    for (const double size : {100.0, 1e7}) {
      AbnCase c =
          make(dtype, Activation::kLeakyReLU, "residual of size " + std::to_string(size), Saved::kOutput, 1);
      c.residual = c.residual->detach().mul(size).set_requires_grad(true);
      reset_abn_fallback_stats();
      const Outcome got = run_layer(c, true), want = run_truth(c);
      EXPECT_EQ(abn_fallback_stats().layers, dtype == at::kFloat || size > 1e5 ? 1 : 0);
      EXPECT_LE(relative_error(got.dx, want.dx), tolerance_across_kinks(dtype));
      EXPECT_LE(relative_error(got.dweight, want.dweight), tolerance_across_kinks(dtype));
    }
  }
}

/// 3 of 96 channels are non-invertible.
AbnCase case_with_non_invertible_channels(at::ScalarType dtype, bool channels_last) {
  AbnCase c = make_case({4, 96, 5, 7}, dtype);
  c.name = channels_last ? "channels-last" : "NCHW";
  if (channels_last) c.base = c.base.contiguous(at::MemoryFormat::ChannelsLast);
  const at::NoGradGuard no_grad;
  c.weight->index_put_({torch::tensor({3, 40, 95})}, torch::tensor({0.0, 1e-9, -1e-12}).to(dtype));
  return c;
}

TEST(AbnSaved, AFewNonInvertibleChannelsTakeASideBuffer) {
  for (const bool channels_last : {false, true})
    for (const bool training : {true, false})
      for (const bool has_residual : {false, true})
        for_each_form([&](at::ScalarType dtype, bool in_place) {
          AbnCase c = case_with_non_invertible_channels(dtype, channels_last);
          if (has_residual)
            c.residual = torch::randn(c.base.sizes(), at::kDouble).to(dtype).set_requires_grad(true);
          c.options.training = training;
          reset_abn_fallback_stats();
          expect_right(c, in_place);
          EXPECT_EQ(abn_fallback_stats().layers, 0);
          EXPECT_EQ(abn_fallback_stats().channels, 3);
        });
}

TEST(AbnSaved, NonInvertibleChannelsHaveTheSameGradientsWhicheverAreWanted) {
  for (const bool channels_last : {false, true})
    for (const bool training : {true, false}) {
      AbnCase c = case_with_non_invertible_channels(at::kFloat, channels_last);
      c.options.training = training;
      const auto gradients = [&](bool of_x, bool of_parameters) {
        const at::Tensor x = c.base.detach().clone().set_requires_grad(of_x);
        const auto leaf = [&](const OptionalTensor& t) {
          return t->detach().set_requires_grad(of_parameters);
        };
        const at::Tensor weight = leaf(c.weight), bias = leaf(c.bias);
        std::vector<at::Tensor> of;
        if (of_x) of.push_back(x);
        if (of_parameters) of.insert(of.end(), {weight, bias});
        const at::Tensor z =
            abn(x, {weight, bias, c.running_mean->clone(), c.running_var->clone()}, c.options);
        return torch::autograd::grad({z}, of, {c.dz});
      };
      const auto all = gradients(true, true), x = gradients(true, false), parameters = gradients(false, true);
      EXPECT_TRUE(at::equal(x[0], all[0])) << c.name;
      EXPECT_TRUE(at::equal(parameters[0], all[1])) << c.name;
      EXPECT_TRUE(at::equal(parameters[1], all[2])) << c.name;
    }
}

TEST(AbnSaved, WhatIsKeptMayNotBeChangedBeforeBackward) {
  for (const Saved saved : kAllSaved) {
    at::Tensor leaf = torch::randn({4, 6, 5}).set_requires_grad(true);
    at::Tensor x = leaf * 2;
    at::Tensor z = abn_(x, {}, saved == Saved::kInput ? AbnOptions{} : options_with(saved));
    x.detach().add_(1);
    EXPECT_NE(error_of([&] { z.sum().backward(); }).find("modified by an inplace operation"),
              std::string::npos);
  }
}

TEST(AbnSaved, BranchesAreFoundInAnyLayoutAndAnyStride) {
  for (const auto activation : {Activation::kGELU, Activation::kSiLU}) {
    for_each_form([&](at::ScalarType dtype, bool in_place) {
      for (const int form : {0, 1, 2, 3, 4}) {
        AbnCase c =
            make_case(form == 4 ? std::vector<int64_t>{29, 13} : std::vector<int64_t>{3, 13, 5, 7}, dtype);
        c.name = "form " + std::to_string(form);
        c.options.activation = activation;
        c.options.saved = Saved::kOutputBit;
        if (form == 1) c.base = c.base.contiguous(at::MemoryFormat::ChannelsLast);
        if (form == 2)
          c.view = [](const at::Tensor& t) { return t.transpose(2, 3).contiguous().transpose(2, 3); };
        if (form == 3) c.view = [](const at::Tensor& t) { return at::cat({t, t}, 1).slice(1, 0, 13); };
        expect_right(c, in_place);
      }
    });
  }
}

TEST(AbnSaved, ALayerThatIsOnlyEvaluatedStoresNoBits) {
  const AbnCase c = make_case({4, 6, 5, 7}, at::kFloat);
  const torch::NoGradGuard no_grad;
  const auto z = [&](Saved saved) {
    AbnOptions options;
    options.activation = Activation::kGELU;
    options.saved = saved;
    return abn(c.base, {c.weight, c.bias}, options);
  };
  const int64_t before = memory::memory_stats().current_bytes;
  const at::Tensor got = z(Saved::kOutputBit);
  EXPECT_EQ(memory::memory_stats().current_bytes - before, c.base.numel() * 4);
  EXPECT_LE(relative_error(got, z(Saved::kInput)), tolerance_across_kinks(at::kFloat));
}

TEST(AbnSaved, FrozenIdentityWithFrozenParametersKeepsNothing) {
  at::Tensor leaf = torch::randn({4, 6, 50}).set_requires_grad(true);
  const at::Tensor weight = torch::rand(6).add(0.5), bias = torch::rand(6), mean = torch::rand(6),
                   var = torch::rand(6).add(0.5);
  AbnOptions options;
  options.training = false;
  options.activation = Activation::kIdentity;
  at::Tensor z = abn(leaf, {weight, bias, mean, var}, options);
  const at::Tensor dz = torch::randn_like(z);
  z.detach().zero_();  // nobody needs it
  z.backward(dz);
  const at::Tensor want = dz * (weight / (var + options.eps).sqrt()).view({1, 6, 1});
  EXPECT_LE(relative_error(leaf.grad(), want), tolerance_across_kinks(at::kFloat));
}

}  // namespace
}  // namespace palimpsest::ops::tests
