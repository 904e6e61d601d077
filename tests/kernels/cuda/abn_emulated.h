#pragma once

#include "palimpsest/kernels/cuda/abn.h"
#include "tests/kernels/abn_case.h"
#include "tests/support/cuda_emulator/emulator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>

namespace palimpsest::testing {

/// How a test has the device: which way the kernels go is decided by what fits on it.
enum class Path {
  kTwoLaunches,  ///< no shared memory to keep a panel in
  kOneBlock,     ///< each panel in one block, if it fits
  kClusters,     ///< each panel in a cluster of blocks, if it fits into 8
};

inline const char* name_of(Path path) {
  return path == Path::kTwoLaunches ? "two launches" : path == Path::kOneBlock ? "one block" : "clusters";
}

/// The emulated device until the end of the scope.
class Device {
 public:
  explicit Device(Path path, cuda_emulator::Order order = cuda_emulator::Order::kForward) {
    auto& s = cuda_emulator::settings();
    s.order = order;
    s.multiprocessors = path == Path::kTwoLaunches ? 1 << 30 : 1;
    if (path == Path::kOneBlock) s.max_cluster = 1;
    // Twice the 12 KiB that a kernel needs besides, and 2 KiB for a share of the panel.
    if (path == Path::kClusters) s.shared_bytes_per_block = 2 * (12 + 2) * 1024;
  }
  ~Device() { cuda_emulator::settings() = {}; }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
};

/// A workspace as the operators keep one: zero at first, then as the last call left it.
class WorkspaceMemory {
 public:
  kernels::cuda::Queue queue(const kernels::AbnProblem& layer) {
    const auto needed = static_cast<std::size_t>(kernels::cuda::abn_workspace_bytes(layer));
    if (needed != bytes_) {  // exactly as large as asked for, or an overrun would go unnoticed
      memory_.reset(new unsigned char[needed]);
      std::memset(memory_.get(), 0, needed);
      bytes_ = needed;
    }
    return {nullptr, memory_.get()};
  }

 private:
  std::unique_ptr<unsigned char[]> memory_;
  std::size_t bytes_ = 0;
};

/// Outputs that nobody wrote are not numbers.
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

/// Forward by the CUDA kernels.
template <class T, class Rounding>
void run_cuda_forward(const AbnCase& c, AbnTensors<T, Rounding>& t,
                      const kernels::RunningStatistics& running = {}) {
  WorkspaceMemory workspace;
  forget_outputs(t);
  const auto layer = c.layer<T>();
  kernels::cuda::abn_forward(layer, kEps, t.forward(c), running, workspace.queue(layer));
}

/// Forward, then backward where the layer has one.
template <class T, class Rounding>
void run_cuda(const AbnCase& c, AbnTensors<T, Rounding>& t) {
  WorkspaceMemory workspace;
  run_cuda_forward(c, t);
  const auto layer = c.layer<T>();
  if (can_save(c.activation, c.saved))
    kernels::cuda::abn_backward(layer, t.backward(c), workspace.queue(layer));
}

}  // namespace palimpsest::testing
