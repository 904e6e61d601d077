#pragma once

#include "palimpsest/kernels/cuda/abn.h"
#include "tests/kernels/abn_case.h"
#include "tests/kernels/cuda/emulated.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

namespace palimpsest::testing {

/// The way that the operator takes on a device, which depends on its shared memory.
enum class Path {
  kTwoLaunches,  ///< no panel stays in shared memory
  kOneBlock,     ///< a panel stays in one block, if it fits
  kClusters,     ///< a panel stays in a cluster of blocks, if it fits into 8
};

inline constexpr Path kPaths[] = {Path::kTwoLaunches, Path::kOneBlock, Path::kClusters};

inline const char* name_of(Path path) {
  return path == Path::kTwoLaunches ? "two launches" : path == Path::kOneBlock ? "one block" : "clusters";
}

/// Emulates a device of this kind until the end of the scope.
class EmulatedDevice {
 public:
  explicit EmulatedDevice(Path path, Order order = Order::kForward) : order_(order) {
    auto& settings = cuda_emulator::settings();
    settings.multiprocessors = path == Path::kTwoLaunches ? 1 << 30 : 1;
    if (path == Path::kOneBlock) settings.max_cluster = 1;
    // Two blocks, each with 12 KiB that a kernel needs besides and 2 KiB for its share of a panel.
    if (path == Path::kClusters) settings.shared_bytes_per_block = 2 * (12 + 2) * 1024;
  }

 private:
  WithOrder order_;
};

/// Emulates a device that runs clusters of `blocks` blocks and no others, until the end of the scope.
class ClusterDevice {
 public:
  explicit ClusterDevice(int blocks = 1, Order order = Order::kForward) : order_(order) {
    auto& settings = cuda_emulator::settings();
    settings.multiprocessors = 1;
    for (int64_t& active : settings.active_clusters) active = 0;
    settings.active_clusters[std::countr_zero(static_cast<unsigned>(blocks))] = int64_t{1} << 30;
  }

 private:
  WithOrder order_;
};

/// A workspace as the operators take it: other memory in each call, with any content.
class WorkspaceMemory {
 public:
  kernels::cuda::Queue queue(const kernels::AbnProblem& problem,
                             const kernels::SlotChoice* choice = nullptr) {
    memory_ = any_content(kernels::cuda::abn_forward_workspace_bytes(problem, choice));
    return {nullptr, memory_.get()};
  }

 private:
  std::unique_ptr<unsigned char[]> memory_;
};

/// Fills the outputs with NaN, which remains where a kernel does not write.
template <class T, class Rounding>
void forget_outputs(AbnTensors<T, Rounding>& t) {
  const auto forget = [](auto& buffer) {
    using Value = std::remove_reference_t<decltype(buffer[0])>;
    for (int64_t i = 0; i < buffer.size(); ++i)
      buffer[i] = static_cast<Value>(std::numeric_limits<double>::quiet_NaN());
  };
  forget(t.z), forget(t.saved_values), forget(t.mean), forget(t.var), forget(t.inv_std);
  forget(t.dx), forget(t.dresidual), forget(t.z_again), forget(t.sum_dy), forget(t.sum_dy_xhat);
  std::fill_n(t.branch.data(), t.branch.size(), uint8_t{0});
}

/// Forward with the CUDA kernels.
template <class T, class Rounding>
void run_cuda_forward(const AbnCase& c, AbnTensors<T, Rounding>& t,
                      const kernels::RunningStatistics& running = {},
                      const kernels::SlotChoice* choice = nullptr) {
  WorkspaceMemory workspace;
  forget_outputs(t);
  const auto problem = c.problem<T>();
  kernels::cuda::abn_forward(problem, kEps, t.forward(c), running, workspace.queue(problem, choice), choice);
}

/// Runs forward, and backward if the activation can be differentiated from the saved tensor.
template <class T, class Rounding>
void run_cuda(const AbnCase& c, AbnTensors<T, Rounding>& t) {
  WorkspaceMemory workspace;
  run_cuda_forward(c, t);
  const auto problem = c.problem<T>();
  if (can_save(c.activation, c.saved))
    kernels::cuda::abn_backward(problem, t.backward(c), workspace.queue(problem));
}

/// All results have the same bytes.
template <class T>
void expect_same(AbnTensors<T>& got, AbnTensors<T>& want) {
  EXPECT_TRUE(same_bytes(got.z.values(), want.z.values())) << "z";
  EXPECT_TRUE(same_bytes(got.saved_values.values(), want.saved_values.values())) << "saved values";
  EXPECT_TRUE(same_bytes(got.mean.values(), want.mean.values())) << "mean";
  EXPECT_TRUE(same_bytes(got.var.values(), want.var.values())) << "var";
  EXPECT_TRUE(same_bytes(got.inv_std.values(), want.inv_std.values())) << "inv_std";
  EXPECT_TRUE(same_bytes(got.dx.values(), want.dx.values())) << "dx";
  EXPECT_TRUE(same_bytes(got.sum_dy.values(), want.sum_dy.values())) << "sum_dy";
  EXPECT_TRUE(same_bytes(got.sum_dy_xhat.values(), want.sum_dy_xhat.values())) << "sum_dy_xhat";
}

/// Forward, where the first and the last 8 values of each channel, and so the pivots, are 1e4 standard deviations from
/// the mean, on the device that is emulated now.
template <class T>
void expect_digits_beside_outliers(const AbnCase& c) {
  using Truth = std::conditional_t<sizeof(T) == 2, T, double>;
  AbnTensors<T> got(c);
  AbnTensors<Truth, T> want(c);
  const bool planes = c.layout == Layout::kNCHW;
  for (int64_t channel = 0; channel < c.shape.c; ++channel)
    for (int64_t outlier = 0; outlier < 16; ++outlier) {
      const int64_t pixels = planes ? c.shape.s : c.shape.n * c.shape.s;
      const int64_t pixel = outlier < 8 ? outlier : pixels - 16 + outlier;
      const int64_t image = planes && outlier >= 8 ? c.shape.n - 1 : 0;
      const int64_t at =
          planes ? (image * c.shape.c + channel) * c.shape.s + pixel : channel + pixel * c.shape.c;
      got.x[at] = got.input(static_cast<double>(got.x[at]) + 10000);
      want.x[at] = static_cast<Truth>(static_cast<double>(got.x[at]));
    }
  run_cuda_forward(c, got);
  kernels::reference::abn_forward(c.problem<Truth>(), kEps, want.forward(c));
  EXPECT_TRUE(close(got.var.values(), want.var.values(), tolerance(dtype_of<accumulate_t<T>>()), c.seed));
  EXPECT_TRUE(close(got.z.values(), want.z.values(), tolerance(dtype_of<T>()), c.seed));
}

}  // namespace palimpsest::testing
