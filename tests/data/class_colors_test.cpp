#include "palimpsest/data/class_colors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace palimpsest::data {
namespace {

TEST(ClassColors, AreCamVidsAndThenAllDifferent) {
  const at::Tensor colors = class_colors(256);
  EXPECT_EQ(colors.sizes(), (at::IntArrayRef{256, 3}));
  EXPECT_EQ(colors.scalar_type(), at::kByte);
  EXPECT_TRUE(colors[3].equal(at::tensor({128, 64, 128}, at::kByte)));  // road
  EXPECT_TRUE(class_colors(5).equal(colors.slice(0, 0, 5)));
  std::set<std::tuple<int, int, int>> seen{{0, 0, 0}};  // black is void
  for (int64_t i = 0; i < 256; ++i) {
    seen.insert({colors[i][0].item<int>(), colors[i][1].item<int>(), colors[i][2].item<int>()});
  }
  EXPECT_EQ(seen.size(), 257u);
}

}  // namespace
}  // namespace palimpsest::data
