#include "palimpsest/ops/common/layout.h"

#include "tests/support/error_of.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>

namespace palimpsest::ops::common_tests {
namespace {

std::optional<Layout> layout_of(const at::Tensor& t) {
  return native_layout(t.sizes(), t.strides());
}

TEST(Layout, OfLibtorchsTensorsIsFound) {
  const auto last = at::MemoryFormat::ChannelsLast;
  const at::Tensor x = torch::randn({2, 3, 4, 5});
  EXPECT_EQ(layout_of(x), Layout::kNCHW);
  EXPECT_EQ(layout_of(x.contiguous(last)), Layout::kChannelsLast);
  EXPECT_EQ(layout_of(torch::randn({2, 3, 4, 5, 6}).contiguous(at::MemoryFormat::ChannelsLast3d)),
            Layout::kChannelsLast);
  EXPECT_EQ(layout_of(torch::randn({2, 7})), Layout::kChannelsLast) << "one pixel";
  EXPECT_EQ(layout_of(torch::randn({2, 1, 4, 5}).contiguous(last)), Layout::kNCHW) << "one channel";
  EXPECT_EQ(layout_of(x.slice(1, 0, 2)), std::nullopt);
  EXPECT_EQ(layout_of(x.transpose(2, 3)), std::nullopt);
}

TEST(Layout, OutputsLieAsLibtorchsDo) {
  const at::Tensor x = torch::randn({2, 6, 4, 5});
  for (const at::Tensor& t : {x, x.contiguous(at::MemoryFormat::ChannelsLast), x.narrow(0, 1, 1)})
    EXPECT_EQ(empty_output(t).strides(), t.strides());
  EXPECT_TRUE(empty_output(x.slice(3, 0, 5, 2)).is_contiguous());
  const at::Tensor part = x.contiguous(at::MemoryFormat::ChannelsLast).slice(3, 0, 5, 2);
  EXPECT_TRUE(empty_output(part).is_contiguous(at::MemoryFormat::ChannelsLast));

  for (const Layout layout : testing::kLayouts) {
    const at::Tensor copy = contiguous_in(layout, x);
    EXPECT_EQ(layout_of(copy), layout);
    EXPECT_EQ(copy.strides(), at::IntArrayRef(contiguous_strides(x.sizes(), layout)));
    EXPECT_TRUE(copy.equal(x));
    EXPECT_TRUE(contiguous_in(layout, copy).is_same(copy)) << "not copied again";
    EXPECT_EQ(layout_of(in_layout_of(copy, x)), layout);
  }
}

TEST(Layout, APartOfAStorageHasAVersionOfItsOwn) {
  const at::Tensor x = torch::zeros({4, 3});
  const at::Tensor part = part_of_storage(x, at::kFloat, 3, {2, 3}, {3, 1});
  part.fill_(1);
  EXPECT_EQ(x.sum().item<float>(), 6);
  EXPECT_EQ(x.select(0, 0).sum().item<float>(), 0) << "begins at the offset";
  EXPECT_EQ(x._version(), 0);
}

TEST(Layout, Shape3JoinsAllPositions) {
  for (const auto& [sizes, s] : {std::pair<std::vector<int64_t>, int64_t>{{2, 3}, 1}, {{2, 3, 4, 5}, 20}}) {
    const Shape3 shape = shape3(torch::empty(sizes));
    EXPECT_EQ(shape.n, 2);
    EXPECT_EQ(shape.c, 3);
    EXPECT_EQ(shape.s, s);
  }
}

TEST(Layout, FindsOverlapWhereStridesShareMemory) {
  const at::Tensor x = torch::randn({2, 3, 4, 5});
  EXPECT_FALSE(may_overlap_itself(x));
  EXPECT_FALSE(may_overlap_itself(x.permute({3, 1, 0, 2})));
  EXPECT_FALSE(may_overlap_itself(x.slice(1, 0, 3, 2)));
  EXPECT_FALSE(may_overlap_itself(x.slice(1, 0, 1).expand({2, 1, 4, 5})));
  EXPECT_FALSE(may_overlap_itself(torch::empty({0, 3}).as_strided({0, 3}, {0, 0})));
  EXPECT_TRUE(may_overlap_itself(x.slice(0, 0, 1).expand({4, 3, 4, 5})));
  EXPECT_TRUE(may_overlap_itself(torch::randn(10).unfold(0, 4, 2)));
}

}  // namespace
}  // namespace palimpsest::ops::common_tests
