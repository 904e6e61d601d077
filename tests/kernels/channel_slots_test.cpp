#include "tests/kernels/channel_slots_case.h"

#include "palimpsest/kernels/formulas/channel_slots.h"

#include <algorithm>
#include <set>

namespace palimpsest::testing {
namespace {

class ChannelSlots : public ::testing::TestWithParam<ChannelSlotsCase> {};

TEST_P(ChannelSlots, EqualTheReference) {
  expect_slots_equal_the_reference(GetParam(), kernels::cpu::choose_slots);
}

INSTANTIATE_TEST_SUITE_P(Choose, ChannelSlots, ::testing::ValuesIn(channel_slots_cases()));

/// Four channels: of weight 1, 0, -1 and 0.
struct FourChannels {
  const float weight[4] = {1, 0, -1, 0};
  kernels::SlotReport report;

  std::vector<int64_t> choose(int64_t slots) {
    std::vector<int64_t> index(static_cast<std::size_t>(slots));
    kernels::cpu::choose_slots({.shape = {2, 4, 3}},
                               {.weight = weight, .slots = slots, .index = index.data(), .report = &report});
    return index;
  }
};

TEST(ChannelSlotsOfFourChannels, GoToTheWantedOnesInTheirOrder) {
  FourChannels four;
  EXPECT_EQ(four.choose(2), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(kernels::unpack_counts(four.report.counts).wanted, 2);
  EXPECT_EQ(four.report.late, 0u);
}

TEST(ChannelSlotsOfFourChannels, NameAnotherChannelWhereTheyAreUnused) {
  FourChannels four;
  EXPECT_EQ(four.choose(3), (std::vector<int64_t>{1, 3, 0 - 4}));
  EXPECT_EQ(four.choose(4), (std::vector<int64_t>{1, 3, 0 - 4, 2 - 4}));
}

TEST(ChannelSlotsOfFourChannels, CountTheChannelsThatFindNone) {
  FourChannels four;
  EXPECT_EQ(four.choose(1), (std::vector<int64_t>{1}));
  four.choose(0);
  EXPECT_EQ(four.report.late, 1u + 2u);
}

TEST(ChannelSlots, NearChannelsAreThoseThatHalfTheirWeightWouldLose) {
  const float weight[] = {1, 1, 1, 1}, bias[] = {28, 31, 59, 61};  // lost from 60 on
  kernels::SlotReport report;
  kernels::ChannelSlots tensors{.weight = weight, .bias = bias, .report = &report};
  kernels::cpu::choose_slots({.shape = {1, 4, 1}}, tensors);
  EXPECT_EQ(kernels::unpack_counts(report.counts).wanted, 1);
  EXPECT_EQ(kernels::unpack_counts(report.counts).near, 3);
  tensors.counts_near = false;
  kernels::cpu::choose_slots({.shape = {1, 4, 1}}, tensors);
  EXPECT_EQ(kernels::unpack_counts(report.counts).near, 1);
}

TEST(ResidualSample, SpreadsOverRowsAndColumns) {
  for (const int64_t side : {7, 8, 14, 28, 56, 112}) {
    const kernels::ResidualSample sample({2, 1, side * side}, Layout::kNCHW);
    std::set<int64_t> rows, columns, all;
    for (int64_t i = 0; i < sample.values(); ++i) {
      const int64_t at = sample.at(0, i);
      ASSERT_LT(at, 2 * side * side);
      all.insert(at);
      rows.insert(at % (side * side) / side);
      columns.insert(at % side);
    }
    EXPECT_EQ(static_cast<int64_t>(all.size()), sample.values()) << "no value twice";
    const auto most = static_cast<double>(std::min<int64_t>(side, 64));
    EXPECT_GE(static_cast<double>(rows.size()), 0.9 * most) << side;
    EXPECT_GE(static_cast<double>(columns.size()), 0.7 * most) << side;
  }
}

TEST(CopiedChannels, AreThoseOfTheIndex) {
  for_each_copied_channels_case([](const CopiedChannelsCase& c) {
    expect_channels_are_copied(c, kernels::cpu::gather_channels, kernels::cpu::scatter_channels);
  });
}

}  // namespace
}  // namespace palimpsest::testing
