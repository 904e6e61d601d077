#include "tests/kernels/channel_slots_case.h"

#include "palimpsest/kernels/formulas/channel_slots.h"
#include "tests/support/compare.h"

#include <algorithm>
#include <set>
#include <span>
#include <stdexcept>

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

/// The passes over a channels-last tensor copy what gather_channels and scatter_channels copy, and change nothing else,
/// also where they write over their input.
template <class T>
void expect_copied_by_passes(const Shape3& shape, Saved saved) {
  const AbnCase c{.shape = shape,
                  .layout = Layout::kChannelsLast,
                  .activation = saved == Saved::kOutputBit ? Activation::kGELU : Activation::kLeakyReLU,
                  .saved = saved,
                  .has_residual = true};
  SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << c);
  const kernels::AbnProblem problem = c.problem<T>();
  std::vector<int64_t> index{shape.c - 1, shape.c / 2 - shape.c, 0};
  if (shape.c >= 100)
    for (int64_t channel = 2; channel < shape.c - 1; channel += 2)
      if (channel != shape.c / 2) index.push_back(channel);
  const auto count = static_cast<int64_t>(index.size());
  const auto values = static_cast<std::size_t>(count * shape.n * shape.s);
  AbnTensors<T> plain(c), t(c), split(c);
  run_cpu(c, plain);
  std::vector<T> x_part(values), dz_part(values), dx_part(values), got(values);
  kernels::cpu::gather_channels(problem, index.data(), count, plain.x.data(), x_part.data());
  kernels::cpu::gather_channels(problem, index.data(), count, plain.dz.data(), dz_part.data());
  for (std::size_t i = 0; i < values; ++i) dx_part[i] = T(static_cast<float>(i % 100));
  kernels::cpu::scatter_channels(problem, index.data(), count, dx_part.data(), plain.dx.data());

  kernels::AbnForward forward = t.forward(c);
  forward.z = t.x.data();
  forward.x_part = {index.data(), count, got.data()};
  kernels::cpu::abn_forward(problem, kEps, forward);
  EXPECT_TRUE(same_bytes(t.x.values(), plain.z.values()));
  EXPECT_TRUE(same_bytes(std::span<const T>(got), std::span<const T>(x_part)));

  std::fill(got.begin(), got.end(), T(0.0F));
  forward = split.forward(c);
  kernels::cpu::abn_statistics(problem, split.x.data(), split.mean.data(), split.var.data());
  split.inv_std = t.inv_std;
  forward.x_part = {index.data(), count, got.data()};
  kernels::cpu::abn_apply(problem, forward);
  EXPECT_TRUE(same_bytes(split.z.values(), plain.z.values()));
  EXPECT_TRUE(same_bytes(split.saved_values.values(), plain.saved_values.values()));
  EXPECT_TRUE(same_bytes(split.branch.values(), plain.branch.values()));
  EXPECT_TRUE(same_bytes(std::span<const T>(got), std::span<const T>(x_part)));

  for (const bool whole : {false, true}) {
    std::fill(got.begin(), got.end(), T(0.0F));
    kernels::AbnBackward backward = split.backward(c);
    backward.dz_part = {index.data(), count, got.data()};
    whole ? kernels::cpu::abn_backward(problem, backward)
          : kernels::cpu::abn_backward_reduce(problem, backward);
    EXPECT_TRUE(same_bytes(std::span<const T>(got), std::span<const T>(dz_part)));
    EXPECT_TRUE(same_bytes(split.sum_dy.values(), plain.sum_dy.values()));
    EXPECT_TRUE(same_bytes(split.sum_dy_xhat.values(), plain.sum_dy_xhat.values()));
  }
  kernels::AbnBackward backward = split.backward(c);
  backward.dx = split.dz.data();
  backward.dx_part = {index.data(), count, dx_part.data()};
  kernels::cpu::abn_backward_apply(problem, backward, static_cast<double>(shape.per_channel()));
  EXPECT_TRUE(same_bytes(split.dz.values(), plain.dx.values()));
  EXPECT_TRUE(same_bytes(split.dresidual.values(), plain.dresidual.values()));
  EXPECT_TRUE(same_bytes(split.z_again.values(), plain.z_again.values()));
}

TEST(CopiedChannels, ByAPassAreThoseOfTheIndex) {
  // Several pixels per row of columns; one; more channels than a panel has; work for several threads; pieces of more
  // than 128 KiB, from which more than 256 channels are copied; more than 144 rows per piece, which
  // are summed in two parts.
  for (const Shape3& shape : {Shape3{2, 3, 50}, Shape3{1, 8, 64}, Shape3{2, 40, 33}, Shape3{3, 70, 49},
                              Shape3{2, 8, 2000}, Shape3{2, 2100, 15}, Shape3{2, 100, 900}, Shape3{3, 33, 1},
                              Shape3{2, 600, 520}, Shape3{1, 70, 9311}}) {
    for (const Saved saved : {Saved::kOutput, Saved::kPreActivation, Saved::kOutputBit}) {
      expect_copied_by_passes<float>(shape, saved);
      expect_copied_by_passes<BFloat16>(shape, saved);
      expect_copied_by_passes<double>(shape, saved);
    }
  }
}

TEST(CopiedChannels, ByAPassAreRefusedWhereItCannotCopyThem) {
  const AbnCase c{.shape = {2, 4, 9}}, one{.shape = {2, 1, 9}, .layout = Layout::kChannelsLast},
      last{.shape = {2, 4, 9}, .layout = Layout::kChannelsLast};
  AbnTensors<float> t(c);
  const int64_t index[] = {0};
  float part[18];
  const kernels::PartOfChannels copied{index, 1, part};
  kernels::AbnForward forward = t.forward(c);
  forward.x_part = copied;
  kernels::AbnBackward reduce = t.backward(c), apply = reduce;
  reduce.dz_part = apply.dx_part = copied;
  for (const AbnCase& wrong : {c, one}) {
    const auto problem = wrong.problem<float>();
    EXPECT_THROW(kernels::cpu::abn_forward(problem, kEps, forward), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_apply(problem, forward), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_backward_reduce(problem, reduce), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_backward_apply(problem, apply, 18), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_backward(problem, reduce), std::invalid_argument);
  }
  EXPECT_THROW(kernels::cpu::abn_backward(last.problem<float>(), apply), std::invalid_argument);
}

}  // namespace
}  // namespace palimpsest::testing
