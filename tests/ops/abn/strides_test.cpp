#include "tests/ops/abn_case.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

using At = at::indexing::TensorIndex;
using at::indexing::None;
using at::indexing::Slice;

/// A case whose input is `view` of a dense tensor of `shape`; dz takes the shape of the view.
AbnCase viewed(std::string name, std::vector<int64_t> shape, at::ScalarType dtype,
               std::function<at::Tensor(const at::Tensor&)> view) {
  const at::Tensor sample = view(torch::empty(shape, dtype));
  AbnCase c = make_case(sample.sizes().vec(), dtype);
  c.base = torch::randn(shape, at::kDouble).mul(1.3).add(0.7).to(dtype);
  c.view = std::move(view);
  c.name = std::move(name);
  return c;
}

/// Every way in which an input may lie in memory.
std::vector<AbnCase> strided_cases(at::ScalarType dtype) {
  const auto channels_last = [](const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast); };
  return {
      viewed("channels last", {4, 9, 6, 5}, dtype, channels_last),
      viewed("channels last of one channel", {4, 1, 6, 5}, dtype, channels_last),
      viewed("channels last of one pixel", {9, 6, 1, 1}, dtype, channels_last),
      viewed("channels last of one image", {1, 9, 6, 5}, dtype, channels_last),
      viewed("channels last in 3d", {2, 9, 3, 4, 5}, dtype,
             [](const at::Tensor& t) { return t.contiguous(at::MemoryFormat::ChannelsLast3d); }),
      viewed("channels last in 1d", {4, 17, 9}, dtype, [](const at::Tensor& t) { return t.transpose(1, 2); }),
      viewed("transposed matrix", {9, 32}, dtype, [](const at::Tensor& t) { return t.t(); }),
      viewed("columns of a matrix", {32, 9}, dtype, [](const at::Tensor& t) { return t.slice(1, 2, 7); }),
      viewed("some images", {6, 5, 4, 3}, dtype, [](const at::Tensor& t) { return t.slice(0, 1, 5); }),
      viewed("every second image", {6, 5, 4, 3}, dtype,
             [](const at::Tensor& t) { return t.slice(0, 0, 6, 2); }),
      viewed("some channels", {4, 9, 6, 5}, dtype, [](const at::Tensor& t) { return t.slice(1, 2, 7); }),
      viewed("some channels, channels last", {4, 9, 6, 5}, dtype,
             [=](const at::Tensor& t) { return channels_last(t).slice(1, 2, 7); }),
      viewed("one of many channels", {4, 9, 6, 5}, dtype,
             [](const at::Tensor& t) { return t.slice(1, 2, 3); }),
      viewed("every second pixel", {4, 5, 6, 8}, dtype,
             [](const at::Tensor& t) { return t.slice(3, 0, 8, 2); }),
      viewed("rows and columns swapped", {4, 5, 6, 8}, dtype,
             [](const at::Tensor& t) { return t.transpose(2, 3); }),
      viewed("images and channels swapped", {4, 5, 6, 8}, dtype,
             [](const at::Tensor& t) { return t.transpose(0, 1); }),
      viewed("rows outside images", {6, 4, 5, 8}, dtype,
             [](const at::Tensor& t) { return t.permute({1, 2, 0, 3}); }),
      viewed("one plane of a volume", {4, 5, 3, 6, 7}, dtype,
             [](const at::Tensor& t) { return t.select(2, 1); }),
  };
}

TEST(AbnStrides, AnyStridesGiveTheRightValuesAndGradients) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const auto& c : strided_cases(dtype)) expect_right(c, in_place);
  });
}

TEST(AbnStrides, AnyStridesGiveTheRightValuesAndGradientsWhenFrozenOrDegenerate) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (auto& c : strided_cases(dtype)) {
      c.options.training = false;
      expect_right(c, in_place);
      c.options.training = true;
      c.weight = torch::zeros_like(*c.weight, c.weight->options()).set_requires_grad(true);
      expect_right(c, in_place);
    }
  });
}

TEST(AbnStrides, AnyStridesOfTheIncomingGradientGiveTheRightGradients) {
  for_each_form([](at::ScalarType dtype, bool in_place) {
    for (const bool channels_last : {false, true}) {
      AbnCase c = make_case({4, 6, 5, 8}, dtype);
      if (channels_last) c.base = c.base.contiguous(at::MemoryFormat::ChannelsLast);
      const at::Tensor dense = c.dz;
      const std::vector<std::pair<std::string, at::Tensor>> gradients{
          {"contiguous", dense},
          {"channels last", dense.contiguous(at::MemoryFormat::ChannelsLast)},
          {"transposed", dense.transpose(2, 3).contiguous().transpose(2, 3)},
          {"sliced", torch::cat({dense, dense}, 3).slice(3, 0, 8)},
          {"one value expanded", torch::full({}, 0.5, dtype).expand({4, 6, 5, 8})},
          {"one image expanded", dense.slice(0, 0, 1).expand({4, 6, 5, 8})}};
      for (const auto& [name, dz] : gradients) {
        c.dz = dz;
        c.name = name + (channels_last ? " over channels last" : " over NCHW");
        const at::Tensor before = dz.clone();
        expect_right(c, in_place);
        EXPECT_TRUE(dz.equal(before)) << "the caller's gradient was written over";
      }
    }
  });
}

TEST(AbnStrides, TheOutputLiesAsTheInputDoes) {
  const auto strides_of = [](const at::Tensor& x) { return abn(x, {}).strides().vec(); };
  const at::Tensor x = torch::randn({2, 3, 4, 5});
  EXPECT_EQ(strides_of(x), x.strides());
  const at::Tensor channels_last = x.contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(strides_of(channels_last), channels_last.strides());
  const at::Tensor pixel = torch::randn({4, 3, 1, 1}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(strides_of(pixel), pixel.strides());
  const at::Tensor volume = torch::randn({2, 3, 2, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast3d);
  EXPECT_EQ(strides_of(volume), volume.strides());
  const at::Tensor sequence = torch::randn({2, 7, 3}).transpose(1, 2);
  EXPECT_EQ(strides_of(sequence), sequence.strides());
  // A tensor that needs a copy gets the contiguous layout that is nearest to its own.
  EXPECT_EQ(strides_of(channels_last.slice(1, 0, 2)), (std::vector<int64_t>{40, 1, 10, 2}));
  EXPECT_EQ(strides_of(x.slice(1, 0, 2)), (std::vector<int64_t>{40, 20, 5, 1}));
}

TEST(AbnStrides, InPlaceWritesOnlyWhatTheViewShows) {
  const at::Tensor base = torch::randn({4, 9, 6, 5});
  const at::Tensor before = base.clone();
  const torch::NoGradGuard no_grad;
  abn_(base.slice(1, 2, 7), {});
  EXPECT_TRUE(base.slice(1, 0, 2).equal(before.slice(1, 0, 2)));
  EXPECT_TRUE(base.slice(1, 7, 9).equal(before.slice(1, 7, 9)));
  EXPECT_FALSE(base.slice(1, 2, 7).equal(before.slice(1, 2, 7)));
}

}  // namespace
}  // namespace palimpsest::ops::tests
