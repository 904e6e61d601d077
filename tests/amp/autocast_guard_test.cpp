#include "palimpsest/amp/autocast_guard.h"

#include "palimpsest/amp/precision.h"
#include "palimpsest/base/compute_in_f32.h"
#include "tests/amp/support.h"
#include "tests/support/expect_error.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <tuple>

namespace palimpsest::amp {
namespace {

using palimpsest::testing::expect_error;
using testing::CallCounter;

/// Enabled, dtype, cache, compute_in_f32(): of the CPU, on this thread.
auto state() {
  return std::tuple(at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
                    at::autocast::is_autocast_cache_enabled(), compute_in_f32());
}

TEST(AutocastGuard, NestsAndPutsBackWhatItFound) {
  const auto outside = state();
  {
    const AutocastGuard outer(at::kCPU, at::kHalf, {.compute_in_f32 = true});
    EXPECT_EQ(state(), std::tuple(true, at::kHalf, true, true));
    {
      const AutocastGuard inner(at::kCPU, at::kBFloat16, {.cache = false});
      EXPECT_EQ(state(), std::tuple(true, at::kBFloat16, false, false));
      const AutocastGuard off(at::kCPU, at::kHalf, {.enabled = false});
      EXPECT_EQ(state(), std::tuple(false, at::kHalf, true, false));
    }
    EXPECT_EQ(state(), std::tuple(true, at::kHalf, true, true));
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA)) << "another device's";
    {
      const AutocastGuard other(at::Device(at::kCUDA, 0), at::kBFloat16);
      EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCUDA));
      EXPECT_EQ(std::get<1>(state()), at::kHalf);
    }
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  }
  EXPECT_EQ(state(), outside);
}

TEST(AutocastGuard, AnExceptionPassesAndLeavesEverythingAsItWas) {
  const auto outside = state();
  EXPECT_THROW(
      {
        const AutocastGuard outer(at::kCPU, at::kHalf, {.compute_in_f32 = true});
        const AutocastGuard inner(at::kCPU, at::kBFloat16);
        throw std::runtime_error("within");
      },
      std::runtime_error);
  EXPECT_EQ(state(), outside);
  EXPECT_EQ(at::autocast::increment_nesting(), 1) << "no scope is open";
  at::autocast::decrement_nesting();
}

TEST(AutocastGuard, LibtorchsLayersRunInItsType) {
  torch::nn::Linear linear(4, 3);
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const AutocastGuard guard(at::kCPU, type);
    const auto y = linear(torch::ones({2, 4}));
    EXPECT_EQ(y.scalar_type(), type);
    EXPECT_EQ(linear(torch::ones({2, 4})).to(at::kFloat).softmax(1).scalar_type(), at::kFloat);
    const AutocastGuard off(at::kCPU, type, {.enabled = false});
    EXPECT_EQ(linear(torch::ones({2, 4})).scalar_type(), at::kFloat);
  }
}

TEST(AutocastGuard, TheOutermostExitClearsTheCacheOfWeights) {
  at::Tensor weight = torch::ones({3, 4}).set_requires_grad(true);
  const auto x = torch::ones({2, 4}).to(at::kBFloat16);
  // Not torch::nn::Linear, which hands over a transposed view: autocast's cache holds leaves only.
  const auto multiply = [&] { return at::linear(x, weight); };
  const CallCounter casts("aten::_to_copy");
  {
    const AutocastGuard outer(at::kCPU, at::kBFloat16, {.cache = true});
    multiply();
    EXPECT_EQ(casts.calls(), 1);
    {
      const AutocastGuard inner(at::kCPU, at::kBFloat16, {.cache = true});
      multiply();
    }
    multiply();
    EXPECT_EQ(casts.calls(), 1) << "the inner guard's end is not the outermost";
  }
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(2);
  }
  {
    const AutocastGuard guard(at::kCPU, at::kBFloat16, {.cache = true});
    EXPECT_EQ(multiply()[0][0].to(at::kFloat).item<float>(), 8) << "a stale copy of the weight";
  }
  const AutocastGuard guard(at::kCPU, at::kBFloat16, {.cache = false});
  const int before = casts.calls();
  multiply();
  multiply();
  EXPECT_EQ(casts.calls(), before + 2);
}

TEST(AutocastGuard, OtherTypesAndDevicesAreRefused) {
  const auto outside = state();
  expect_error(ErrorKind::kUsage, {"dtype must be f16 or bf16, got Float"},
               [] { AutocastGuard(at::kCPU, at::kFloat); });
  expect_error(ErrorKind::kUsage, {"device must be the CPU or CUDA, got meta"},
               [] { AutocastGuard(at::kMeta, at::kHalf); });
  EXPECT_EQ(state(), outside);
}

TEST(Precision, HasFourNamesAndTheirGuards) {
  EXPECT_EQ(precision_names(), (std::vector<std::string>{"f32", "bf16", "f16", "f16-pseudo"}));
  for (const auto& name : precision_names()) {
    const Precision precision = parse_precision(name);
    EXPECT_EQ(to_string(precision), name);
    const auto outside = state();
    {
      const PrecisionGuard guard(at::kCPU, precision);
      if (precision == Precision::kF32) {
        EXPECT_EQ(state(), outside);
      } else {
        const bool bf16 = precision == Precision::kBF16;
        EXPECT_EQ(state(), std::tuple(true, bf16 ? at::kBFloat16 : at::kHalf, false,
                                      precision == Precision::kF16Pseudo));
        EXPECT_EQ(needs_loss_scale(precision), !bf16);
      }
    }
    EXPECT_EQ(state(), outside);
  }
  expect_error(ErrorKind::kUsage, {"unknown precision 'bf15'", "did you mean 'bf16'"},
               [] { parse_precision("bf15"); });
}

}  // namespace
}  // namespace palimpsest::amp
