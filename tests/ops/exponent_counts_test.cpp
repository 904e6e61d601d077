#include "palimpsest/ops/exponent_counts.h"

#include "tests/support/error_of.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <numeric>

namespace palimpsest::ops::exponent_counts_tests {
namespace {

int64_t at_exponent(const ExponentCounts& counts, int exponent) {
  return counts.finite[static_cast<std::size_t>(exponent - kLowestExponent)];
}

TEST(ExponentCounts, EveryValueIsCountedOnce) {
  const at::Tensor t =
      torch::tensor({0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.999f, 2.0f, 0.75f,
                     std::ldexp(1.0f, kLowestExponent), std::ldexp(-1.5f, kHighestExponent)});
  const ExponentCounts counts = exponent_counts(t);
  EXPECT_EQ(counts.zero, 2);
  EXPECT_EQ(counts.infinite, 2);
  EXPECT_EQ(counts.nan, 1);
  EXPECT_EQ(at_exponent(counts, 0), 2);
  EXPECT_EQ(at_exponent(counts, 1), 1);
  EXPECT_EQ(at_exponent(counts, -1), 1);
  EXPECT_EQ(at_exponent(counts, kLowestExponent), 1) << "the smallest subnormal number";
  EXPECT_EQ(at_exponent(counts, kHighestExponent), 1);
  EXPECT_EQ(std::accumulate(counts.finite.begin(), counts.finite.end(), int64_t{0}), 6);
}

TEST(ExponentCounts, TakeAnyStridesShapeAndType) {
  torch::manual_seed(8);
  const at::Tensor t = torch::randn({6, 5, 4, 3}).to(at::kHalf).to(at::kFloat);
  const auto same = [](const ExponentCounts& a, const ExponentCounts& b) {
    return a.zero == b.zero && a.infinite == b.infinite && a.nan == b.nan && a.finite == b.finite;
  };
  const ExponentCounts all = exponent_counts(t);
  EXPECT_TRUE(same(exponent_counts(t.permute({2, 0, 3, 1})), all));
  EXPECT_TRUE(same(exponent_counts(t.contiguous(at::MemoryFormat::ChannelsLast)), all));
  EXPECT_TRUE(same(exponent_counts(t.to(at::kHalf)), all));
  EXPECT_TRUE(same(exponent_counts(t.slice(1, 0, 5, 2)), exponent_counts(t.slice(1, 0, 5, 2).clone())));
  EXPECT_TRUE(same(exponent_counts(torch::empty({0, 3})),
                   ExponentCounts{0, 0, 0, exponent_counts(torch::zeros(1)).finite}));
  const at::Tensor rounded = t.to(at::kBFloat16);
  EXPECT_TRUE(same(exponent_counts(rounded), exponent_counts(rounded.to(at::kFloat))));
}

TEST(ExponentCounts, OtherTypesAreRefused) {
  EXPECT_NE(testing::error_of([] {
              exponent_counts(torch::zeros(1, at::kDouble));
            }).find("[exponent_counts] values must be f32, f16 or bf16, got Double"),
            std::string::npos);
}

}  // namespace
}  // namespace palimpsest::ops::exponent_counts_tests
