#pragma once

#include "palimpsest/base/random.h"
#include "palimpsest/kernels/channel_slots.h"
#include "tests/kernels/abn_case.h"

#include <gtest/gtest.h>

#include <cstdint>
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

}  // namespace palimpsest::testing
