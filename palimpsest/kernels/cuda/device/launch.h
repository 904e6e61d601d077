#pragma once

// The one runtime header that CUDA sources include.

#include "palimpsest/kernels/cuda/device/device.h"
#include "palimpsest/kernels/cuda/device/reduce.h"
#include "palimpsest/kernels/cuda/device/vector16.h"
#include "palimpsest/kernels/cuda/stream.h"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace palimpsest::kernels::cuda {

/// How a kernel is launched: a line of blocks.
struct LaunchShape {
  int64_t blocks = 1;            ///< up to 2^31 - 1, a multiple of `cluster`
  int threads = 256;             ///< of a block: a multiple of 32, at most 1024
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of a block
  int cluster = 1;               ///< blocks that share their shared memory
};

/// What the device at hand can do.
struct Device {
  int64_t shared_bytes_per_block = 0;
  int max_cluster = 1;  ///< 1: a device without clusters
  int multiprocessors = 1;
};

#ifdef __CUDACC__

/// Throws std::runtime_error naming file, line and CUDA's own words where `call` failed.
#define PALIMPSEST_CUDA_CHECK(call) ::palimpsest::kernels::cuda::check((call), __FILE__, __LINE__, #call)

inline void check(cudaError_t error, const char* file, int line, const char* what) {
  if (error == cudaSuccess) return;
  std::string name = file;
  name = name.substr(name.rfind('/') + 1);
  throw std::runtime_error(name + ":" + std::to_string(line) + ": " + what +
                           " failed: " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

/// Of the current device; asked once a device, never waits for it.
inline Device current_device() {
  constexpr int kDevices = 64;
  static Device known[kDevices];  // two threads that ask at once write the same
  int number = 0;
  PALIMPSEST_CUDA_CHECK(cudaGetDevice(&number));
  Device device = known[number % kDevices];
  if (device.shared_bytes_per_block == 0) {
    int bytes = 0, clusters = 0, multiprocessors = 0;
    PALIMPSEST_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number));
    PALIMPSEST_CUDA_CHECK(cudaDeviceGetAttribute(&clusters, cudaDevAttrClusterLaunch, number));
    PALIMPSEST_CUDA_CHECK(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, number));
    device = {bytes, clusters ? 8 : 1, multiprocessors};  // 8: what every device with clusters has
    known[number % kDevices] = device;
  }
  return device;
}

/// kernel(arguments...) on `stream` of the current device; returns before it ends. Throws std::runtime_error
/// where it cannot be launched, naming `name`.
template <class... Parameters, class... Arguments>
void launch(const char* name, const LaunchShape& shape, Stream stream, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  constexpr std::size_t kSharedWithoutAsking = 48 * 1024;
  const auto checked = [&](cudaError_t error) {
    if (error == cudaSuccess) return;
    throw std::runtime_error(std::string("[") + name + "] launch of " + std::to_string(shape.blocks) +
                             " blocks of " + std::to_string(shape.threads) + " threads, " +
                             std::to_string(shape.shared_bytes) + " bytes of shared memory and clusters of " +
                             std::to_string(shape.cluster) + " failed: " + cudaGetErrorString(error));
  };
  if (shape.shared_bytes > kSharedWithoutAsking)
    checked(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shape.shared_bytes)));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  if (shape.cluster > 1) config.attrs = &cluster, config.numAttrs = 1;
  checked(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

inline bool capture_is_on(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  PALIMPSEST_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

#else

inline bool capture_is_on(Stream) {
  return false;
}

inline Device current_device() {
  const auto& settings = cuda_emulator::settings();
  return {settings.shared_bytes_per_block, settings.max_cluster, settings.multiprocessors};
}

template <class... Parameters, class... Arguments>
void launch(const char* name, const LaunchShape& shape, Stream, void (*kernel)(Parameters...),
            const Arguments&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "parameters are copied to the device byte by byte");
  cuda_emulator::run({.kernel = name,
                      .grid = {static_cast<unsigned>(shape.blocks), 1, 1},
                      .threads = static_cast<unsigned>(shape.threads),
                      .shared_bytes = shape.shared_bytes,
                      .cluster = static_cast<unsigned>(shape.cluster)},
                     [&] { kernel(static_cast<Parameters>(arguments)...); });
}

#endif

}  // namespace palimpsest::kernels::cuda
