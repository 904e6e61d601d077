// How many slots the host plans while a device runs behind it. The device is a list of reports that the tests
// deliver when they like.
#include "palimpsest/ops/invertibility/slot_plan.h"

#include "palimpsest/base/recomputing.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

namespace palimpsest::ops::invertibility {
namespace {

using kernels::SlotReport;
using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kChannels = 320;  // so that up to 10 are saved one by one

/// A layer on a device that has done nothing until it is told to.
struct Device {
  explicit Device(int64_t pixels) : pixels(pixels) {}

  int64_t pixels;  // each test has a kind of layers of its own
  OptionalTensor weight = torch::ones(kChannels).set_requires_grad(true), bias = torch::zeros(kChannels);
  int64_t near = 0;  // of the present values
  std::vector<std::pair<SlotReport*, int64_t>> queue;
  at::Tensor like = torch::zeros(1);

  PlannedSlots pass() {
    const PlannedSlots planned = plan();
    queue.emplace_back(planned.report, near);
    return planned;
  }
  /// The device does all that is queued.
  void run() {
    for (const auto& [report, count] : queue) report->counts = kernels::pack_counts({count, count});
    queue.clear();
  }
  int64_t slots() { return pass().count; }
  int64_t slots_again() {
    const RecomputingGuard again;
    return pass().count;
  }
  void backward() const { note_backward(weight, bias); }
  /// Writes weight and bias once each, as an optimizer does.
  void step() const { write(2); }
  void write(int times) const {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < times; ++i) at::Tensor(i % 2 == 0 ? *weight : *bias).add_(1);
  }

 private:
  PlannedSlots plan() {
    return plan_slots({{.shape = {1, kChannels, pixels}},
                       weight,
                       bias,
                       false,
                       [this](const kernels::ChannelSlots& tensors) {  // the host waits for it
                         EXPECT_EQ(tensors.slots, 0);
                         EXPECT_FALSE(tensors.counts_late);
                         run();
                         tensors.report->counts = kernels::pack_counts({near, near});
                       }},
                      like);
  }
};

/// The waits of the host since the object was made.
struct Waits {
  int64_t before = host_waits();
  int64_t operator()() const { return host_waits() - before; }
};

TEST(SlotPlan, AllChannelsAreSavedIfMoreThanOneIn32AreWanted) {
  for (const auto& [wanted, channels, slots] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {0, 64, 0}, {1, 1, 1}, {1, 8, 1}, {2, 8, 8}, {2, 64, 2}, {3, 64, 64}, {64, 64, 64}})
    EXPECT_EQ(slots_for(wanted, channels), slots) << wanted << " of " << channels;
}

TEST(SlotPlan, OnlyTheFirstPassWaits) {
  Device device(1);
  const Waits waits;
  device.near = 2;
  EXPECT_EQ(device.slots(), 2);
  EXPECT_EQ(waits(), 1);
  for (int i = 0; i < 40; ++i) {
    device.backward();
    if (i % 3 != 0) device.step();  // gradients of several passes, too
    EXPECT_EQ(device.slots(), 2);
    if (i % 4 == 0) device.run();
  }
  EXPECT_EQ(waits(), 1);
}

TEST(SlotPlan, SlotsFollowTheReportsThatHaveArrived) {
  Device device(2);
  device.slots();
  for (const int64_t near : {1, 5, 11, 3, 0}) {
    device.near = near;
    device.backward(), device.step();
    const int64_t before = device.slots();  // its own report is on the way
    device.backward(), device.step();
    EXPECT_EQ(device.slots(), before) << "nothing has arrived";
    device.run();
    device.backward(), device.step();
    EXPECT_EQ(device.slots(), near == 11 ? kChannels : near);
    device.run();
  }
}

TEST(SlotPlan, ARecomputedPassHasTheSlotsOfItsFirstRun) {
  Device device(3);
  device.slots();
  for (int i = 0; i < 60; ++i) {
    device.near = i % 12;
    device.backward(), device.step();
    const int64_t first = device.slots(), second = device.slots();  // two parts of a batch
    EXPECT_EQ(first, second);
    if (i % 3 == 0) device.run();
    EXPECT_EQ(device.slots_again(), first);
    device.backward();
    device.run();
    EXPECT_EQ(device.slots_again(), first);
  }
}

TEST(SlotPlan, ALayerThatIsUsedTwiceHasSlotsForTheUseThatNeedsMore) {
  Device device(16);
  device.slots();
  for (int step = 0; step < 3; ++step) {
    device.backward(), device.step();
    device.near = 7;  // its residual is larger there
    const int64_t first = device.slots();
    device.near = 0;
    const int64_t second = device.slots();
    EXPECT_EQ(first, second);
    if (step > 0) {
      EXPECT_EQ(first, 7) << "step " << step;
    }
    device.run();
  }
  device.backward(), device.step();
  device.near = 7, device.slots();
  device.run();  // the report of the second use is on its way
  device.near = 0, device.slots();
  device.backward(), device.step();
  EXPECT_EQ(device.slots(), 7);
}

TEST(SlotPlan, PartsOfABatchHaveTheSlotsOfThePartThatNeedsMore) {
  // Backward runs between the parts; the reports arrive at once, or a pass late.
  for (const bool late : {false, true}) {
    Device device(late ? 17 : 18);
    device.slots();
    device.run();
    for (int step = 0; step < 6; ++step) {
      device.backward(), device.step();
      for (const int64_t near : {0, 7}) {
        device.near = near;
        if (late) device.run();
        const int64_t slots = device.slots();
        if (step > 2) {
          EXPECT_EQ(slots, 7) << "step " << step << ", part of " << near;
        }
        if (!late) device.run();
        if (near == 0) device.backward();
      }
    }
  }
}

TEST(SlotPlan, WeightsThatNobodyWritesFollowTheLatestReport) {
  Device device(19);
  device.near = 0, device.slots();
  for (const int64_t near : {9, 2, 0, 300, 1}) {
    device.near = near;
    device.backward(), device.slots(), device.run();
    device.backward();
    EXPECT_EQ(device.slots(), slots_for(near, kChannels));
    device.run();
  }
}

TEST(SlotPlan, APassWithinBackwardIsARecomputedOne) {
  Device device(4);
  device.slots();
  device.near = 4;
  device.backward(), device.step();
  const int64_t first = device.slots();
  device.run();
  device.backward();  // as torch.utils.checkpoint runs a segment again, without a word to us
  const at::Tensor leaf = torch::ones(1).set_requires_grad(true);
  const at::Tensor loss = leaf * 2;
  loss.register_hook([&](const at::Tensor&) {
    const PlannedSlots again = device.pass();
    EXPECT_EQ(again.count, first);
    EXPECT_TRUE(again.runs_again);
  });
  loss.backward();
  EXPECT_EQ(device.slots(), 4);
}

TEST(SlotPlan, WithoutAFirstRunRecomputedPassesFollowTheReportsToo) {
  // A reentrant checkpoint: the first run has no graph, and chooses nothing.
  Device device(5);
  device.slots_again();
  for (const int64_t near : {3, 0, 7}) {
    device.near = near;
    device.backward(), device.step();
    device.slots_again();
    device.run();
    device.backward(), device.step();
    EXPECT_EQ(device.slots_again(), near);
  }
}

TEST(SlotPlan, ValuesThatWereLoadedAreReadAtOnce) {
  Device device(6);
  device.slots();
  device.backward(), device.step();
  device.slots();
  const Waits waits;
  device.near = 6;
  device.backward(), device.step(), device.write(2);  // loaded behind the step
  EXPECT_EQ(device.slots(), 6);
  EXPECT_EQ(waits(), 1);
  device.near = 8;
  device.write(2);  // as many writes as a step, but no backward ran before them
  EXPECT_EQ(device.slots(), 8);
  EXPECT_EQ(waits(), 2);
}

TEST(SlotPlan, WritesBeforeTheFirstBackwardAreNoStep) {
  for (const bool backward : {false, true}) {
    Device device(7);
    device.slots();
    const Waits waits;
    if (backward) device.backward();
    device.near = 1;
    device.write(backward ? 5 : 1);  // no optimizer writes five times
    EXPECT_EQ(device.slots(), 1);
    EXPECT_EQ(waits(), 1);
  }
}

TEST(SlotPlan, AnOptimizerThatWritesWithoutAVersionChangesThemToo) {
  Device device(8);
  device.slots();
  device.near = 5;
  device.slots();
  device.run();
  EXPECT_EQ(device.slots(), 0) << "a second pass of the same step";
  device.backward();
  EXPECT_EQ(device.slots(), 5);
}

TEST(SlotPlan, ComputedWeightsWaitOnceForAllLayersOfAKind) {
  const at::Tensor leaf = torch::ones(kChannels).set_requires_grad(true);
  Device one(9), two(9);
  const Waits waits;
  for (int i = 0; i < 20; ++i) {
    one.near = i < 10 ? 0 : 2;
    std::vector<int64_t> slots;
    for (Device* device : {&one, &two}) {
      device->weight = leaf.abs() + 0.1;  // a new tensor each pass
      slots.push_back(device->slots());
    }
    EXPECT_EQ(slots, (std::vector<int64_t>(2, i < 11 ? 0 : 2))) << "the most that any of them had, at " << i;
    one.run();
    EXPECT_EQ(one.slots_again(), slots[0]);
    two.run();
    for (Device* device : {&one, &two}) {
      device->weight = leaf.abs() + 0.1;
      EXPECT_EQ(device->slots_again(), slots[0]);
      device->backward();
      device->run();
    }
  }
  EXPECT_EQ(waits(), 1);
}

TEST(SlotPlan, ConstantsThatAreMadeInEachPassEndByWaitingNoMore) {
  Device device(10);
  for (int i = 0; i < 300; ++i) {
    device.weight = torch::ones(kChannels);
    device.pass();
    device.run();
    device.backward();
  }
  const Waits waits;
  for (int i = 0; i < 100; ++i) {
    device.weight = torch::ones(kChannels);
    device.pass();
    device.run();
    device.backward();
  }
  EXPECT_EQ(waits(), 0);
}

TEST(SlotPlan, NetworksThatLivedAndWentDoNotCount) {
  for (int network = 0; network < 40; ++network) {
    std::vector<Device> layers(10, Device(11));
    const Waits waits;
    for (Device& layer : layers) {
      layer.weight = torch::ones(kChannels).set_requires_grad(true);
      layer.bias = torch::zeros(kChannels);
    }
    for (int step = 0; step < 3; ++step)
      for (Device& layer : layers) layer.pass(), layer.run(), layer.backward(), layer.step();
    ASSERT_EQ(waits(), 10) << "network " << network;
  }
}

TEST(SlotPlan, AlwaysHadSlotsIsTrueOfTheseValuesOnly) {
  Device device(12);
  device.slots();
  device.near = 3;
  for (int i = 0; i < 2; ++i) device.run(), device.backward(), device.step(), device.slots();
  EXPECT_TRUE(always_had_slots(device.weight, device.bias));
  device.near = 0;
  device.backward(), device.run();
  EXPECT_EQ(device.slots(), 3) << "a pass with the same values needed them";
  device.run(), device.backward(), device.step();
  EXPECT_EQ(device.slots(), 3);
  EXPECT_TRUE(always_had_slots(device.weight, device.bias));
  // Reports of one of two passes may be on their way: the step before counts, too.
  for (int i = 0; i < 2; ++i) device.run(), device.backward(), device.step(), device.slots();
  EXPECT_EQ(device.slots(), 0);
  EXPECT_FALSE(always_had_slots(device.weight, device.bias)) << "one pass had none";
  device.step();
  EXPECT_FALSE(always_had_slots(device.weight, device.bias)) << "no pass with these values";
  EXPECT_FALSE(always_had_slots(torch::ones(kChannels), std::nullopt));
}

TEST(SlotPlan, TwoWeightsAtOnePlaceAreTwoLayers) {
  Device whole(13), part(13);
  whole.near = 7;
  EXPECT_EQ(whole.slots(), 7);
  part.weight = whole.weight->detach().narrow(0, 0, 8).set_requires_grad(true);
  EXPECT_EQ(part.slots(), 0) << "another plan";
}

}  // namespace
}  // namespace palimpsest::ops::invertibility
