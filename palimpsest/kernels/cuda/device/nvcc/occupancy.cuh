#pragma once

// What the runtime knows of a kernel's launches, asked once per device and kept.

#include "palimpsest/kernels/cuda/device/launch_shape.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace palimpsest::kernels::cuda {

using LaunchAttributes = std::array<cudaLaunchAttribute, 2>;

/// The launch of a shape. `overlaps`: it may begin before the one before it has ended. `attributes` holds what is special in
/// it; it lives as long as the configuration.
inline cudaLaunchConfig_t configuration(const LaunchShape& shape, bool overlaps,
                                        LaunchAttributes& attributes) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  attributes = {};
  config.attrs = attributes.data();
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  if (overlaps) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  return config;
}

/// Lets `kernel` have so much dynamic shared memory on `device`, the current one. The limit only grows, so
/// that threads with other needs do not disturb each other.
inline cudaError_t allow_shared_bytes(const void* kernel, int device, std::size_t bytes) {
  constexpr std::size_t kWithoutAttribute = 48 * 1024;
  if (bytes <= kWithoutAttribute) return cudaSuccess;
  static std::mutex mutex;
  static auto& allowed = *new std::map<std::pair<const void*, int>, std::size_t>;
  const std::scoped_lock lock(mutex);
  std::size_t& most = allowed[{kernel, device}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

/// Returns whether the kernel's code asks for its place in a cluster and waits for the launch before it, asked once per
/// kernel and `device`, the current one. Code for older devices, which a newer one compiles from PTX, takes each block for a
/// cluster of its own.
inline bool is_for_hopper(const void* kernel, int device) {
  constexpr int kHopper = 90;
  static std::mutex mutex;
  static auto& known = *new std::map<std::pair<const void*, int>, bool>;
  const std::scoped_lock lock(mutex);
  const auto [found, is_new] = known.try_emplace({kernel, device}, false);
  if (!is_new) return found->second;
  cudaFuncAttributes attributes = {};
  if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess)
    found->second = attributes.ptxVersion >= kHopper;
  else
    cudaGetLastError();
  return found->second;
}

/// Returns active_clusters (platform.cuh) on `device`, the current one.
inline int64_t known_active_clusters(const LaunchShape& shape, const void* kernel, int device,
                                     int multiprocessors) {
  using Question = std::tuple<const void*, int, std::size_t, int, int>;
  static std::mutex mutex;
  static auto& known = *new std::map<Question, int64_t>;
  const Question question{kernel, device, shape.shared_bytes, shape.threads, shape.cluster};
  {
    const std::scoped_lock lock(mutex);
    if (const auto found = known.find(question); found != known.end()) return found->second;
  }
  int count = 0;
  cudaError_t error = allow_shared_bytes(kernel, device, shape.shared_bytes);
  if (error == cudaSuccess && shape.cluster > 1) {
    LaunchAttributes attributes;
    const cudaLaunchConfig_t config = configuration(shape, false, attributes);
    if (is_for_hopper(kernel, device)) error = cudaOccupancyMaxActiveClusters(&count, kernel, &config);
  } else if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, shape.threads, shape.shared_bytes);
    count *= multiprocessors;
  }
  if (error != cudaSuccess) {
    cudaGetLastError();  // an answer for the caller, not an error of a launch
    count = 0;
  }
  const std::scoped_lock lock(mutex);
  return known[question] = count;
}

}  // namespace palimpsest::kernels::cuda
