#include "palimpsest/kernels/cuda/channel_slots.h"

#include "tests/kernels/channel_slots_case.h"
#include "tests/kernels/cuda/abn_emulated.h"
#include "tests/support/compare.h"

#include <limits>
#include <stdexcept>
#include <vector>

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

class CudaForwardWithSlots : public ::testing::TestWithParam<ChannelSlotsCase> {};

/// A forward pass makes the choice, and computes what it computes without one.
template <class S>
void expect_made_by_a_forward_pass(const ChannelSlotsCase& given, Path path, Order order) {
  SCOPED_TRACE(name_of(path));
  const EmulatedDevice device(path, order);
  const AbnCase c{.shape = given.shape,
                  .layout = given.layout,
                  .has_residual = given.residual,
                  .relu_residual = given.relu_residual};
  AbnTensors<S> plain(c);
  const int64_t before = cuda_emulator::launches();
  run_cuda_forward(c, plain);
  const int64_t plain_launches = cuda_emulator::launches() - before;
  expect_slots_equal_the_reference<S>(
      given, [&](const kernels::AbnProblem& problem, const kernels::ChannelSlots& tensors) {
        AbnTensors<S> t(c);
        const kernels::SlotChoice choice{problem, tensors};
        const int64_t first = cuda_emulator::launches();
        run_cuda_forward(c, t, {}, &choice);
        const bool is_apart =
            tensors.residual || tensors.index || given.shape.c > kernels::cuda::kMostReportedChannels;
        EXPECT_EQ(cuda_emulator::launches() - first, plain_launches + (is_apart ? 1 : 0));
        EXPECT_TRUE(same_bytes(t.z.values(), plain.z.values()));
        EXPECT_TRUE(same_bytes(t.mean.values(), plain.mean.values()));
        EXPECT_TRUE(same_bytes(t.var.values(), plain.var.values()));
        EXPECT_TRUE(same_bytes(t.inv_std.values(), plain.inv_std.values()));
      });
}

TEST_P(CudaForwardWithSlots, EqualsTheReferenceAndAForwardPassWithout) {
  int i = 0;
  dispatch_float(GetParam().dtype, [&]<class S>() {
    for (const Path path : kPaths) expect_made_by_a_forward_pass<S>(GetParam(), path, kOrders[i++]);
  });
}

/// Planes that fit into one block, or that a cluster or several segments share; wanted channels that find no
/// slot, that fill the slots, and that leave slots unused.
std::vector<ChannelSlotsCase> forward_cases() {
  std::vector<DType> dtypes{DType::f32, DType::f64, DType::bf16};
#if !defined(PALIMPSEST_ASAN) && !defined(PALIMPSEST_TSAN)
  dtypes.push_back(DType::f16);  // the sanitizer builds have no layer for it
#endif
  std::vector<ChannelSlotsCase> cases;
  for (const DType dtype : dtypes)
    for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast})
      for (const Shape3& shape : {Shape3{2, 1, 2100}, Shape3{3, 7, 5}, Shape3{2, 8, 514}, Shape3{2, 31, 9}})
        for (const int64_t slots : {int64_t{0}, shape.c / 6, shape.c})
          cases.push_back({dtype, shape, layout, 3, slots});
  constexpr int64_t kMost = kernels::cuda::kMostReportedChannels;
  for (const int64_t channels : {int64_t{256}, int64_t{1000}, kMost, kMost + 1})
    cases.push_back({DType::f32, {1, channels, 2}, Layout::kChannelsLast, 3, 0});
  cases.push_back({DType::f32, {1, 256, 2}, Layout::kChannelsLast, /*every=*/0, 0});
  cases.push_back({DType::f32, {2, 33, 5}, Layout::kNCHW, 3, 0, /*parameters=*/false});
  cases.push_back({DType::f32, {2, 33, 5}, Layout::kNCHW, 3, 0, true, /*residual=*/true});
  for (const Activation activation :
       {Activation::kELU, Activation::kTanh, Activation::kSoftplus, Activation::kGELU, Activation::kSiLU})
    cases.push_back({DType::f32, {2, 300, 7}, Layout::kChannelsLast, 7, 20, true, false, false, activation});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Choose, CudaForwardWithSlots, ::testing::ValuesIn(forward_cases()));

TEST(CudaForwardWithSlots, NeedsAWorkspaceForTheChoiceOnlyIfItIsALaunchOfItsOwn) {
  const auto bytes = [](int64_t channels, int64_t* index, const void* residual) {
    const kernels::AbnProblem problem{.shape = {2, channels, 3}};
    const kernels::SlotChoice choice{problem, {.residual = residual, .index = index}};
    EXPECT_EQ(kernels::cuda::abn_forward_workspace_bytes(problem, nullptr), 0);
    return kernels::cuda::abn_forward_workspace_bytes(problem, &choice);
  };
  constexpr int64_t kMost = kernels::cuda::kMostReportedChannels;
  int64_t index = 0;
  EXPECT_EQ(bytes(kMost, nullptr, nullptr), 0);
  EXPECT_GT(bytes(kMost + 1, nullptr, nullptr), 0);
  EXPECT_GT(bytes(kMost, &index, nullptr), 0);
  EXPECT_GT(bytes(kMost, nullptr, &index), 0);
}

TEST(CudaCopiedChannels, AreThoseOfTheIndex) {
  for (const Order order : kOrders) {
    const WithOrder with_order(order);
    for_each_copied_channels_case([](const CopiedChannelsCase& c) {
      const auto gather = [](const kernels::AbnProblem& problem, const int64_t* index, int64_t count,
                             const void* full, void* part) {
        kernels::cuda::gather_channels(problem, index, count, full, part, nullptr);
      };
      const auto scatter = [](const kernels::AbnProblem& problem, const int64_t* index, int64_t count,
                              const void* part, void* full) {
        kernels::cuda::scatter_channels(problem, index, count, part, full, nullptr);
      };
      expect_channels_are_copied(c, gather, scatter);
    });
  }
}

TEST(CudaCopiedChannels, AnIndexOfNoChannelReadsAndWritesNothing) {
  const kernels::AbnProblem problem{.shape = {2, 3, 2}};
  for (const int64_t wrong :
       {int64_t{3}, int64_t{-4}, int64_t{1} << 40, std::numeric_limits<int64_t>::min()}) {
    const int64_t index[] = {2, wrong};
    const std::vector<float> full{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    std::vector<float> part(8, -1), written = full;
    kernels::cuda::gather_channels(problem, index, 2, full.data(), part.data(), nullptr);
    EXPECT_EQ(part, (std::vector<float>{4, 5, 0, 0, 10, 11, 0, 0}));
    const std::vector<float> other{20, 21, 22, 23, 24, 25, 26, 27};
    kernels::cuda::scatter_channels(problem, index, 2, other.data(), written.data(), nullptr);
    EXPECT_EQ(written, (std::vector<float>{0, 1, 2, 3, 20, 21, 6, 7, 8, 9, 24, 25}));
  }
}

TEST(CudaCopiedChannels, AnImageOfMoreValuesThanALaunchNumbersIsRefused) {
  const kernels::AbnProblem problem{.shape = {1, 4, int64_t{1} << 30}};
  try {
    kernels::cuda::gather_channels(problem, nullptr, 2, nullptr, nullptr, nullptr);
    ADD_FAILURE() << "did not throw";
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "[abn] an image has 2147483648 values in slots, on a GPU at most 2147483647");
  }
}

TEST(CudaChannelSlots, TheReportsMemoryIsZeroAtFirst) {
  const auto* const memory = static_cast<const unsigned char*>(kernels::cuda::mapped_host_memory(100));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(memory[i], 0);
}

}  // namespace
}  // namespace palimpsest::testing
