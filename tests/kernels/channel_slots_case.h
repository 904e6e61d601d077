#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/channel_slots.h"
#include "tests/kernels/abn_case.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// A layer of which some channels are non-invertible: every `every`-th has a weight of 0 or a large bias.
struct ChannelSlotsCase {
  DType dtype;
  Shape3 shape;
  Layout layout = Layout::kNCHW;
  int64_t every = 3;  // 0: none
  int64_t slots = 0;
  bool parameters = true, residual = false, relu_residual = false;
  Activation activation = Activation::kLeakyReLU;

  friend void PrintTo(const ChannelSlotsCase& c, std::ostream* out) {
    *out << name_of(c.dtype) << ", " << c.shape.n << " x " << c.shape.c << " x " << c.shape.s
         << (c.layout == Layout::kNCHW ? "" : " channels-last") << ", every " << c.every << ", " << c.slots
         << " slots" << (c.parameters ? "" : ", no parameters") << (c.residual ? ", residual" : "")
         << (c.relu_residual ? " relu" : "") << ", " << kernels::kActivations.name(c.activation);
  }
};

inline std::vector<ChannelSlotsCase> channel_slots_cases() {
  std::vector<ChannelSlotsCase> cases;
  for (const int64_t channels : {1, 31, 32, 33, 255, 256, 257, 1000})
    for (const int64_t every : {0, 1, 3, 100})
      for (const int64_t slots : {int64_t{0}, int64_t{1}, channels / 3, channels})
        cases.push_back({DType::f32, {2, channels, 5}, Layout::kNCHW, every, slots});
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast})
      for (const Shape3& shape :
           {Shape3{1, 9, 1}, Shape3{3, 33, 63}, Shape3{6, 20, 65}, Shape3{5, 8, 900}, Shape3{3, 530, 7}})
        for (const bool relu : {false, true})
          for (const bool parameters : {false, true})
            cases.push_back({dtype, shape, layout, 4, 5, parameters, true, relu});
  for (const Activation activation :
       {Activation::kELU, Activation::kTanh, Activation::kGELU, Activation::kSiLU})
    cases.push_back({DType::f32, {2, 300, 7}, Layout::kNCHW, 7, 20, true, true, false, activation});
  return cases;
}

/// What a call writes.
struct ChosenSlots {
  std::vector<int64_t> index;
  kernels::SlotReport report;
};

/// choose(problem, tensors) must give what the reference gives. Residuals are far from the threshold, because
/// devices add up the sample in another order.
template <class S, class Choose>
void expect_slots_equal_the_reference(const ChannelSlotsCase& given, const Choose& choose) {
  using T = accumulate_t<S>;
  Random random(static_cast<uint64_t>(given.shape.c));
  std::vector<T> weight, bias;
  std::vector<S> residual(static_cast<std::size_t>(given.shape.elements()));
  const auto is_lost = [&](int64_t c) { return given.every > 0 && c % given.every == given.every - 1; };
  for (int64_t c = 0; c < given.shape.c; ++c) {
    const bool zero = is_lost(c) && c % 2 == 0, near = !is_lost(c) && c % 5 == 0;
    weight.push_back(static_cast<T>(zero ? 0 : random.uniform(0.5, 1)));
    bias.push_back(static_cast<T>(is_lost(c) ? 1e12
                                  : near     ? 0.75 * 60 * static_cast<double>(weight.back())
                                             : 1));
  }
  for (auto& value : residual) value = static_cast<S>(static_cast<float>(random.uniform(-1, 1)));
  for (int64_t n = 0; n < given.shape.n; ++n)  // every eighth channel's residual hides x
    for (int64_t c = 0; c < given.shape.c; c += 8)
      for (int64_t s = 0; s < given.shape.s; ++s) {
        const int64_t at = given.layout == Layout::kNCHW ? (n * given.shape.c + c) * given.shape.s + s
                                                         : (n * given.shape.s + s) * given.shape.c + c;
        residual[static_cast<std::size_t>(at)] = static_cast<S>(c % 16 == 0 ? 1000.0F : -1000.0F);
      }

  const kernels::AbnProblem problem{.shape = given.shape,
                                    .layout = given.layout,
                                    .dtype = given.dtype,
                                    .activation = given.activation,
                                    .activation_param = 1.0,
                                    .relu_residual = given.relu_residual};
  const auto call = [&](const auto& function, bool has_index, bool counts_late) {
    ChosenSlots chosen{std::vector<int64_t>(static_cast<std::size_t>(given.slots), -7777), {}};
    chosen.report.late = 5;
    kernels::ChannelSlots tensors;
    if (given.parameters) tensors.weight = weight.data(), tensors.bias = bias.data();
    if (given.residual) tensors.residual = residual.data();
    tensors.slots = given.slots;
    tensors.index = has_index ? chosen.index.data() : nullptr;
    tensors.report = &chosen.report;
    tensors.counts_late = counts_late;
    function(problem, tensors);
    return chosen;
  };
  for (const bool has_index : {true, false})
    for (const bool counts_late : {true, false}) {
      const ChosenSlots got = call(choose, has_index, counts_late);
      const ChosenSlots want =
          call([](const auto& p, const auto& t) { kernels::reference::choose_slots(p, t); }, has_index,
               counts_late);
      EXPECT_EQ(got.index, want.index);
      EXPECT_EQ(got.report.counts, want.report.counts);
      EXPECT_EQ(got.report.late, want.report.late);
    }
}

template <class Choose>
void expect_slots_equal_the_reference(const ChannelSlotsCase& given, const Choose& choose) {
  dispatch_float(given.dtype, [&]<class S>() { expect_slots_equal_the_reference<S>(given, choose); });
}

/// Channels that are copied; those of unused slots are c - C.
struct CopiedChannelsCase {
  DType dtype;
  Shape3 shape;
  Layout layout;
  std::vector<int64_t> index;

  friend void PrintTo(const CopiedChannelsCase& c, std::ostream* out) {
    *out << name_of(c.dtype) << ", " << c.shape.n << " x " << c.shape.c << " x " << c.shape.s
         << (c.layout == Layout::kNCHW ? "" : " channels-last") << ", channels";
    for (const int64_t channel : c.index) *out << " " << channel;
  }
};

template <class Function>
void for_each_copied_channels_case(const Function& function) {
  for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast})
    for (const Shape3& shape :
         {Shape3{1, 1, 1}, Shape3{3, 33, 63}, Shape3{2, 70, 1}, Shape3{5, 8, 900}, Shape3{0, 8, 3}})
      for (const auto& index : {std::vector<int64_t>{0},
                                {-shape.c},
                                {shape.c - 1, shape.c / 2, 0},
                                {shape.c / 2 - shape.c, 0, -1}}) {
        if (index.size() > 1 && shape.c < 3) continue;  // no channel twice
        for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
          function(CopiedChannelsCase{dtype, shape, layout, index});
      }
  // More values than a GPU's launch has threads.
  function(CopiedChannelsCase{DType::f32, {2, 5, 70001}, Layout::kNCHW, {1, 4 - 5, 3}});
  function(CopiedChannelsCase{DType::f32, {2, 5, 70001}, Layout::kChannelsLast, {1, 4 - 5, 3}});
  // More than twice 256 channels, which is how many a CPU copies at a time; one of them is in an unused slot.
  std::vector<int64_t> many(601);
  std::iota(many.begin(), many.end(), 3);
  many[300] -= 700;
  for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast})
    function(CopiedChannelsCase{DType::bf16, {2, 700, 9}, layout, many});
}

/// U: an integer of the size of the values.
template <class U, class Gather, class Scatter>
void expect_values_are_copied(const CopiedChannelsCase& c, const Gather& gather, const Scatter& scatter) {
  const auto [n_of, c_of, s_of] = c.shape;
  const auto count = static_cast<int64_t>(c.index.size());
  const auto counted = [](int64_t values, U first) {
    std::vector<U> result(static_cast<std::size_t>(values));
    std::iota(result.begin(), result.end(), first);
    return result;
  };
  const auto at = [&, s_of = s_of](int64_t n, int64_t channel, int64_t s, int64_t channels) {
    return static_cast<std::size_t>(c.layout == Layout::kNCHW ? (n * channels + channel) * s_of + s
                                                              : (n * s_of + s) * channels + channel);
  };
  const kernels::AbnProblem problem{.shape = c.shape, .layout = c.layout, .dtype = c.dtype};
  const auto full = counted(c.shape.elements(), U{0});
  std::vector<U> part(static_cast<std::size_t>(n_of * count * s_of)), want_part = part;
  gather(problem, c.index.data(), count, full.data(), part.data());
  const auto other = counted(static_cast<int64_t>(part.size()), static_cast<U>(7777));
  std::vector<U> written = full, want = full;
  scatter(problem, c.index.data(), count, other.data(), written.data());
  for (int64_t n = 0; n < n_of; ++n)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t s = 0; s < s_of; ++s) {
        const int64_t slot = c.index[static_cast<std::size_t>(k)];
        const std::size_t whole = at(n, slot < 0 ? slot + c_of : slot, s, c_of);
        want_part[at(n, k, s, count)] = full[whole];
        if (slot >= 0) want[whole] = other[at(n, k, s, count)];
      }
  EXPECT_EQ(part, want_part) << ::testing::PrintToString(c);
  EXPECT_EQ(written, want) << ::testing::PrintToString(c);
}

/// gather and scatter: the functions of kernels/channel_slots.h.
template <class Gather, class Scatter>
void expect_channels_are_copied(const CopiedChannelsCase& c, const Gather& gather, const Scatter& scatter) {
  switch (size_of(c.dtype)) {
    case 2:
      return expect_values_are_copied<uint16_t>(c, gather, scatter);
    case 4:
      return expect_values_are_copied<uint32_t>(c, gather, scatter);
    default:
      return expect_values_are_copied<uint64_t>(c, gather, scatter);
  }
}

}  // namespace palimpsest::testing
