#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace palimpsest::kernels::cuda {

/// How a kernel is launched: a line of blocks.
struct LaunchShape {
  int64_t blocks = 1;            ///< up to 2^31 - 1, a multiple of `cluster`
  int threads = 256;             ///< per block: a multiple of 32, at most 1024
  std::size_t shared_bytes = 0;  ///< dynamic shared memory per block
  int cluster = 1;               ///< blocks that can read one another's shared memory
  /// The launch may begin while that before it on the stream still runs: its kernel calls wait_for_launch_before() before
  /// it reads what that wrote, or writes what that reads. Nothing changes where the device cannot.
  bool follows = false;
};

/// Names work that runs one after the other: that of a stream, or that which a CUDA graph recorded from one.
struct StreamKey {
  int device = 0;
  uint64_t capture = 0;  ///< unique per graph while it is recorded; 0: the work is not recorded
  uint64_t stream = 0;   ///< unique in the process; of recorded work: in its graph

  auto operator<=>(const StreamKey&) const = default;
};

/// The limits of a device.
struct Device {
  int64_t shared_bytes_per_block = 0;
  int max_cluster = 1;  ///< blocks per cluster; 1: the device has no clusters
  int multiprocessors = 1;
};

}  // namespace palimpsest::kernels::cuda
