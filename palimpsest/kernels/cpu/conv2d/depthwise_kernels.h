#pragma once

#include "palimpsest/kernels/conv2d.h"
#include "palimpsest/kernels/cpu/conv2d/channel_vectors.h"

#include <cstdint>

/// The function that an instruction set provides for depthwise.cpp. Each set compiles depthwise_kernels.cpp
/// into its own namespace and provides one table.
namespace palimpsest::kernels::cpu::conv2d {

/// Windows are 3, 5, 7, 9 or 11 pixels wide: the sums of one row of a window fit into 16 registers.
inline constexpr int64_t kWidestWindow = 11;

struct DepthwiseGradient {
  const float* x;   // (N, in.h, in.w, channels)
  const float* dy;  // (N, out.h, out.w, channels)
  const Conv2dProblem& problem;
};

struct DepthwiseKernels {
  int64_t lanes;  ///< channels in a vector
  /// Writes sums (vectors, ky, kx, lanes) for vectors [first_vector, last_vector): the segment's share of the
  /// weight's gradient.
  void (*weight_gradient)(const DepthwiseGradient& gradient, const Segment& segment, int64_t first_vector,
                          int64_t last_vector, float* sums);
};

}  // namespace palimpsest::kernels::cpu::conv2d
