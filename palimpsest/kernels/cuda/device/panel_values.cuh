#pragma once

#include "palimpsest/kernels/cuda/device/platform.cuh"

/// Per-channel numbers of a panel, in shared memory and in registers.
namespace palimpsest::kernels::cuda {

/// One number for each of kPanel channels in shared memory. A thread has kChannels neighbouring channels.
/// They are split into parts of 16 bytes, and equal parts of neighbouring threads lie side by side, so that a
/// warp reads 16 bytes per lane without bank conflicts.
template <class T, int kChannels, int kPanel>
struct PanelValues {
  static constexpr int kPart = static_cast<int>(16 / sizeof(T)) < kChannels ? 16 / sizeof(T) : kChannels;
  alignas(16) T parts[kChannels / kPart][kPanel / kChannels][kPart];

  /// The number of the panel's channel j.
  __device__ __forceinline__ T& operator[](int j) {
    return parts[j % kChannels / kPart][j / kChannels][j % kPart];
  }
  /// The number of channel c of the thread that has the panel's channels from `first` on.
  __device__ __forceinline__ T of_thread(int first, int c) const {
    return parts[c / kPart][first / kChannels][c % kPart];
  }
  /// Copies the numbers of a thread into registers.
  __device__ __forceinline__ void read(int first, T (&to)[kChannels]) const {
    PALIMPSEST_UNROLL
    for (int c = 0; c < kChannels; ++c) to[c] = of_thread(first, c);
  }
};

}  // namespace palimpsest::kernels::cuda
