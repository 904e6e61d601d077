#include "palimpsest/kernels/cuda/channel_slots.h"

#include "tests/kernels/channel_slots_case.h"
#include "tests/kernels/cuda/emulated.h"

namespace palimpsest::testing {
namespace {

class CudaChannelSlots : public ::testing::TestWithParam<ChannelSlotsCase> {};

TEST_P(CudaChannelSlots, EqualTheReference) {
  const auto choose = [](const kernels::AbnProblem& problem, const kernels::ChannelSlots& tensors) {
    const auto workspace = any_content(kernels::cuda::choose_slots_workspace_bytes(problem));
    for (int twice = 0; twice < 2; ++twice) {  // a call leaves the counters ready for the next one
      tensors.report->late = 5;
      kernels::cuda::choose_slots(problem, tensors, {nullptr, workspace.get()});
    }
  };
  for (const Order order : kOrders) {
    const WithOrder with_order(order);
    expect_slots_equal_the_reference(GetParam(), choose);
  }
}

INSTANTIATE_TEST_SUITE_P(Choose, CudaChannelSlots, ::testing::ValuesIn(channel_slots_cases()));

TEST(CudaChannelSlots, TheReportsMemoryIsZeroAtFirst) {
  const auto* const memory = static_cast<const unsigned char*>(kernels::cuda::mapped_host_memory(100));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(memory[i], 0);
}

}  // namespace
}  // namespace palimpsest::testing
