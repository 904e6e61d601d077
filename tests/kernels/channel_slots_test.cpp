#include "tests/kernels/channel_slots_case.h"

#include "palimpsest/kernels/formulas/channel_slots.h"

#include <algorithm>
#include <numeric>
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

/// Values 0, 1, ... of U, the bytes of which stand for any type of that size.
template <class U>
std::vector<U> counted(int64_t count, U first) {
  std::vector<U> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), first);
  return values;
}

template <class U>
void expect_channels_are_copied(DType dtype, Shape3 shape, Layout layout, const std::vector<int64_t>& index) {
  SCOPED_TRACE(std::string(name_of(dtype)) + ", " + std::to_string(shape.n) + " x " +
               std::to_string(shape.c) + " x " + std::to_string(shape.s) +
               (layout == Layout::kNCHW ? "" : " channels-last"));
  const auto count = static_cast<int64_t>(index.size());
  const auto at = [&](int64_t n, int64_t c, int64_t s, int64_t channels) {
    return static_cast<std::size_t>(layout == Layout::kNCHW ? (n * channels + c) * shape.s + s
                                                            : (n * shape.s + s) * channels + c);
  };
  const kernels::AbnProblem problem{.shape = shape, .layout = layout, .dtype = dtype};
  const auto full = counted<U>(shape.elements(), U{0});
  std::vector<U> part(static_cast<std::size_t>(shape.n * count * shape.s));
  kernels::cpu::gather_channels(problem, index.data(), count, full.data(), part.data());
  const auto other = counted<U>(static_cast<int64_t>(part.size()), static_cast<U>(7777));
  std::vector<U> written = full, want = full;
  kernels::cpu::scatter_channels(problem, index.data(), count, other.data(), written.data());
  for (int64_t n = 0; n < shape.n; ++n)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t s = 0; s < shape.s; ++s) {
        const std::size_t whole = at(n, index[static_cast<std::size_t>(k)], s, shape.c);
        ASSERT_EQ(part[at(n, k, s, count)], full[whole]);
        want[whole] = other[at(n, k, s, count)];
      }
  EXPECT_EQ(written, want);
}

TEST(CopiedChannels, AreThoseOfTheIndex) {
  for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast})
    for (const Shape3& shape : {Shape3{1, 1, 1}, Shape3{3, 33, 63}, Shape3{2, 70, 1}, Shape3{5, 8, 900}})
      for (const auto& index : {std::vector<int64_t>{0}, {shape.c - 1}, {shape.c - 1, shape.c / 2, 0}}) {
        if (std::set<int64_t>(index.begin(), index.end()).size() < index.size()) continue;
        expect_channels_are_copied<uint16_t>(DType::f16, shape, layout, index);
        expect_channels_are_copied<uint16_t>(DType::bf16, shape, layout, index);
        expect_channels_are_copied<uint32_t>(DType::f32, shape, layout, index);
        expect_channels_are_copied<uint64_t>(DType::f64, shape, layout, index);
      }
}

}  // namespace
}  // namespace palimpsest::testing
