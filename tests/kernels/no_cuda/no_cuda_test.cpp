// Every function of kernels/cuda throws the same error in a build without CUDA.
#include "palimpsest/kernels/cuda/abn.h"
#include "palimpsest/kernels/cuda/channel_slots.h"
#include "palimpsest/kernels/cuda/dense_block.h"
#include "palimpsest/kernels/cuda/exponent_histogram.h"
#include "palimpsest/kernels/cuda/group_statistics.h"
#include "palimpsest/kernels/cuda/max_pool.h"
#include "palimpsest/kernels/cuda/upsampled_loss.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace palimpsest::testing {
namespace {

template <class Call>
void expect_refused(const std::string& name, const Call& call) {
  try {
    call();
    ADD_FAILURE() << name << " did not throw";
  } catch (const std::invalid_argument& e) {
    EXPECT_EQ(std::string(e.what()), "[" + name +
                                         "] requires CUDA, and this build has none: use tensors on the CPU, "
                                         "or build with nvcc 12.8 or later: "
                                         "'make build PRESET=cuda', for Python 'scripts/build_wheel --cuda'");
  }
}

TEST(NoCuda, EveryKernelSaysThatThereIsNoCudaAndWhatToDo) {
  namespace cuda = kernels::cuda;
  expect_refused("abn_workspace_bytes", [] { cuda::abn_workspace_bytes({}); });
  expect_refused("abn_statistics", [] { cuda::abn_statistics({}, nullptr, nullptr, nullptr, {}); });
  expect_refused("abn_frozen_statistics", [] {
    cuda::abn_frozen_statistics(DType::f32, 1, 1e-5, nullptr, nullptr, nullptr, nullptr, nullptr);
  });
  expect_refused("abn_apply", [] { cuda::abn_apply({}, {}, {}); });
  expect_refused("abn_forward", [] { cuda::abn_forward({}, 1e-5, {}, {}, {}); });
  expect_refused("abn_forward_workspace_bytes", [] { cuda::abn_forward_workspace_bytes({}, nullptr); });
  expect_refused("abn_recompute_output", [] { cuda::abn_recompute_output({}, {}, {}); });
  expect_refused("abn_backward_reduce", [] { cuda::abn_backward_reduce({}, {}, {}); });
  expect_refused("abn_backward_apply", [] { cuda::abn_backward_apply({}, {}, 1, {}); });
  expect_refused("abn_backward", [] { cuda::abn_backward({}, {}, {}); });
  expect_refused("choose_slots_workspace_bytes", [] { cuda::choose_slots_workspace_bytes({}); });
  expect_refused("choose_slots", [] { cuda::choose_slots({}, {}, {}); });
  expect_refused("gather_channels", [] { cuda::gather_channels({}, nullptr, 1, nullptr, nullptr, nullptr); });
  expect_refused("scatter_channels",
                 [] { cuda::scatter_channels({}, nullptr, 1, nullptr, nullptr, nullptr); });
  expect_refused("dense_normalize", [] { cuda::dense_normalize({}, {}, {}, nullptr, nullptr, nullptr); });
  expect_refused("dense_workspace_bytes", [] { cuda::dense_workspace_bytes({}); });
  expect_refused("dense_normalize_backward", [] { cuda::dense_normalize_backward({}, {}, {}, {}); });
  expect_refused("dense_feature_gradient",
                 [] { cuda::dense_feature_gradient({}, {}, nullptr, nullptr, nullptr, nullptr); });
  expect_refused("exponent_histogram",
                 [] { cuda::exponent_histogram(DType::f32, nullptr, 1, nullptr, nullptr); });
  expect_refused("merge_statistics", [] { cuda::merge_statistics({}, 1e-5, {}, DType::f32, {}, nullptr); });
  expect_refused("mapped_host_memory", [] { cuda::mapped_host_memory(8); });
  expect_refused("is_capturing", [] { cuda::is_capturing(nullptr); });
  expect_refused("max_pool_forward", [] { cuda::max_pool_forward({}, nullptr, nullptr, nullptr, nullptr); });
  expect_refused("max_pool_backward",
                 [] { cuda::max_pool_backward({}, nullptr, nullptr, nullptr, nullptr); });
  expect_refused("upsampled_losses_workspace_bytes", [] { cuda::upsampled_losses_workspace_bytes({}); });
  expect_refused("upsampled_losses",
                 [] { cuda::upsampled_losses({}, nullptr, {}, {}, nullptr, {}, nullptr); });
  expect_refused("upsampled_gradient",
                 [] { cuda::upsampled_gradient({}, nullptr, {}, {}, nullptr, nullptr, nullptr, nullptr); });
  expect_refused("upsampled_argmax", [] { cuda::upsampled_argmax({}, nullptr, nullptr, nullptr); });
}

}  // namespace
}  // namespace palimpsest::testing
