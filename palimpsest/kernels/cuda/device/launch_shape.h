#pragma once

#include <cstddef>
#include <cstdint>

namespace palimpsest::kernels::cuda {

/// How a kernel is launched: a line of blocks.
struct LaunchShape {
  int64_t blocks = 1;            ///< up to 2^31 - 1, a multiple of `cluster`
  int threads = 256;             ///< per block: a multiple of 32, at most 1024
  std::size_t shared_bytes = 0;  ///< dynamic shared memory per block
  int cluster = 1;               ///< blocks that can read one another's shared memory
};

/// The limits of a device.
struct Device {
  int64_t shared_bytes_per_block = 0;
  int max_cluster = 1;  ///< blocks per cluster; 1: the device has no clusters
  int multiprocessors = 1;
};

}  // namespace palimpsest::kernels::cuda
