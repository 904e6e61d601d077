#include "palimpsest/ops/invertibility/saved_channels.h"

#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/common/layout.h"
#include "tests/support/error_of.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace palimpsest::ops::invertibility {
namespace {

using testing::error_of;

at::Tensor image(int64_t channels, bool channels_last = false) {
  return torch::randn({3, channels, 5, 7})
      .contiguous(channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

/// The saved channels of a forward pass over x, filled.
SavedChannels filled(const std::vector<int64_t>& channels, const at::Tensor& x) {
  SavedChannels saved =
      allocate_saved_channels(slots_for(static_cast<int64_t>(channels.size()), x.size(1)), x);
  if (saved.any()) saved.values.copy_(torch::randn(saved.values.sizes()));
  if (saved.index.defined()) saved.index.copy_(torch::tensor(channels, at::kLong));
  return saved;
}

std::vector<int64_t> first(int64_t count) {
  std::vector<int64_t> channels;
  for (int64_t i = 0; i < count; ++i) channels.push_back(i);
  return channels;
}

void expect_same(const SavedChannels& got, const SavedChannels& want) {
  EXPECT_EQ(got.all, want.all);
  ASSERT_EQ(got.any(), want.any());
  EXPECT_EQ(got.index.defined(), want.index.defined());
  if (got.index.defined()) {
    EXPECT_TRUE(got.index.equal(want.index));
  }
  if (!got.any()) return;
  EXPECT_EQ(got.values.strides(), want.values.strides());
  EXPECT_TRUE(got.values.equal(want.values));
}

TEST(SavedChannels, HiddenTensorsHaveNoShapeAndGiveTheSameDataBack) {
  for (const bool channels_last : {false, true}) {
    for (const auto& channels : {std::vector<int64_t>{3}, {5, 60}, first(64)}) {
      const at::Tensor x = image(64, channels_last);
      const SavedChannels saved = filled(channels, x);
      const at::Tensor values = saved.hidden_values(x), index = saved.hidden_index(x);
      EXPECT_EQ(values.sizes(), at::IntArrayRef({0}));
      EXPECT_EQ(index.sizes(), at::IntArrayRef({0}));
      const SavedChannels back(values, index, x);
      expect_same(back, saved);
      EXPECT_EQ(back.values.const_data_ptr(), saved.values.const_data_ptr()) << "not copied";

      const at::Tensor seen = reveal(values), seen_index = reveal(index);
      EXPECT_EQ(seen.numel(), saved.values.numel());
      expect_same(SavedChannels(seen, seen_index, x), saved);
      expect_same(SavedChannels(seen.clone(), seen_index.clone(), x), saved);  // as hooks copy them
      EXPECT_TRUE(reveal(seen).is_same(seen));
    }
  }
}

TEST(SavedChannels, ACopyOfAHiddenTensorHoldsNone) {
  const at::Tensor x = image(64);
  for (const auto& channels : {std::vector<int64_t>{5, 60}, first(64)}) {
    const SavedChannels saved = filled(channels, x);
    const at::Tensor values = saved.hidden_values(x), index = saved.hidden_index(x);
    EXPECT_FALSE(SavedChannels(values.clone(), index.clone(), x).any());
    EXPECT_FALSE(SavedChannels(values.clone(), index, x).any());
    // The storage of a copy may be of any size.
    EXPECT_FALSE(SavedChannels(torch::randn(37).narrow(0, 0, 0), index, x).any());
  }
}

TEST(SavedChannels, UpToOneChannelIn32IsSavedByItself) {
  reset_abn_fallback_stats();
  for (const auto& [channels, count, all] : std::vector<std::tuple<int64_t, int64_t, bool>>{{1, 1, true},
                                                                                            {2, 1, false},
                                                                                            {8, 1, false},
                                                                                            {8, 2, true},
                                                                                            {64, 2, false},
                                                                                            {64, 3, true},
                                                                                            {96, 3, false}}) {
    const SavedChannels saved = filled(first(count), image(channels));
    EXPECT_EQ(saved.all, all) << count << " of " << channels;
    EXPECT_EQ(saved.values.size(1), all ? channels : count);
  }
  EXPECT_EQ(abn_fallback_stats().layers, 3);
  EXPECT_EQ(abn_fallback_stats().channels, 1 + 1 + 2 + 3);
}

TEST(SavedChannels, NoneTakeNoMemory) {
  const at::Tensor x = image(64);
  const SavedChannels none = filled({}, x);
  EXPECT_FALSE(none.any());
  EXPECT_EQ(none.hidden_values(x).storage().nbytes(), 0);
  EXPECT_EQ(none.hidden_values(x).scalar_type(), at::kFloat);
  EXPECT_EQ(none.hidden_index(x).scalar_type(), at::kLong);
  expect_same(SavedChannels(none.hidden_values(x), none.hidden_index(x), x), none);
}

TEST(SavedChannels, ABackwardPassThatLostThemIsRefused) {
  const std::optional<at::Tensor> none;
  for (const int64_t wanted : {0, 1}) {
    const Layer layer{{.shape = {3, 8, 35}}, none, none, false, [&](const kernels::ChannelSlots& tensors) {
                        tensors.report->counts = kernels::pack_counts({wanted, wanted});
                      }};
    const std::string error = error_of([&] { check_none_was_saved(layer, image(8)); });
    EXPECT_EQ(error.find("it is gone") != std::string::npos, wanted > 0) << error;
  }
}

TEST(ChannelView, TakesItsChannelsOutAndPutsThemBack) {
  for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast}) {
    const at::Tensor full = image(64, layout == Layout::kChannelsLast);
    const SavedChannels saved = filled({5, 60}, full);
    const ChannelView view(saved, {.shape = shape3(full), .layout = layout});
    EXPECT_EQ(view.problem().shape.n, 3);
    EXPECT_EQ(view.problem().shape.c, 2);
    EXPECT_EQ(view.problem().shape.s, 35);
    const at::Tensor part = view.gather(full);
    EXPECT_TRUE(part.equal(full.index({at::indexing::Slice(), saved.index})));
    EXPECT_TRUE(is_contiguous_in(part.sizes(), part.strides(), layout));

    const at::Tensor before = full.clone();
    view.scatter(part + 1, full);
    EXPECT_TRUE(view.gather(full).equal(part + 1));
    view.scatter(part, full);
    EXPECT_TRUE(full.equal(before)) << "the other channels stay";

    const at::Tensor vector = torch::randn(64);
    const at::Tensor two = view.gather_vector(vector);
    EXPECT_TRUE(two.equal(torch::stack({vector[5], vector[60]})));
    const at::Tensor target = torch::zeros(64);
    view.scatter_vector(two, target);
    EXPECT_EQ(target.count_nonzero().item<int64_t>(), 2);
    EXPECT_TRUE(view.gather_vector(target).equal(two));
    EXPECT_FALSE(view.gather_vector(at::Tensor()).defined());
  }
}

TEST(ChannelView, PassesWriteAndReadTheSlotsOfPlanes) {
  for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast}) {
    const at::Tensor full = image(64, layout == Layout::kChannelsLast);
    const SavedChannels some = filled({5, 60}, full), all = filled(first(64), full);
    const auto in_pass = ChannelView(some, {.shape = shape3(full), .layout = layout}).in_pass(some.values);
    EXPECT_EQ(in_pass.has_value(), layout == Layout::kNCHW);
    if (in_pass) {
      EXPECT_EQ(in_pass->values, some.values.data_ptr());
      EXPECT_EQ(in_pass->index, some.index.data_ptr());
      EXPECT_EQ(in_pass->count, 2);
    }
    EXPECT_FALSE(ChannelView(all, {.shape = shape3(full), .layout = layout}).in_pass(all.values));
  }
  const at::Tensor rows = torch::randn({3, 64});  // one pixel: no planes
  const SavedChannels some = filled({5, 60}, rows);
  EXPECT_FALSE(ChannelView(some, {.shape = {3, 64, 1}}).in_pass(some.values));
}

// Where the host chooses, no slot is unused: something wrote over the saved index.
TEST(ChannelView, ChannelsThatTheLayerLacksAreRefused) {
  const at::Tensor full = image(64);
  for (const int64_t channel : {int64_t{64}, int64_t{5 - 64}, int64_t{-1}}) {
    const SavedChannels saved = filled({60, channel}, full);
    const std::string error = error_of([&] { ChannelView(saved, {.shape = shape3(full)}); });
    EXPECT_NE(error.find("the saved channels must be 0 to 63, got " + std::to_string(channel)),
              std::string::npos)
        << error;
  }
}

TEST(ChannelView, OfAllChannelsIsTheWhole) {
  const at::Tensor full = image(64);
  const ChannelView view(filled(first(64), full), {.shape = shape3(full)});
  EXPECT_EQ(view.problem().shape.c, 64);
  EXPECT_TRUE(view.gather(full).is_same(full));
  EXPECT_TRUE(view.gather_vector(full).is_same(full));
}

}  // namespace
}  // namespace palimpsest::ops::invertibility
