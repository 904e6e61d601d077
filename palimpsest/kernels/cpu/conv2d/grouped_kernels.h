#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cpu/conv2d/channel_vectors.h"

#include <cstdint>

/// The functions that an instruction set provides for grouped.cpp: single-threaded sweeps over some rows.
/// Each set compiles grouped_kernels.cpp into its own namespace and provides one table.
namespace palimpsest::kernels::cpu::conv2d {

/// A convolution, forward or transposed, from `source` to `result`, both channels-last with `channels`
/// channels in groups of `group`. Along each dimension tap k (0 to 2) leads
///   forward:     from source pixel t * stride - padding + k to result pixel t
///   transposed:  from source pixel s to result pixel s * stride - padding + k; for stride 2 only, because
///                with stride 1 it is a forward convolution with mirrored taps
struct GroupedSweep {
  const float* source;   // (N, source_size.h, source_size.w, channels)
  const float* weights;  // (vectors, ky, i, kx, lanes): those of input i of the group of each lane's channel
  float* result;         // (N, result_size.h, result_size.w, channels)
  int64_t channels, group;
  Pair2 source_size, result_size;
  int64_t stride;
  Pair2 padding;
  bool transposed;
};

struct GroupedWeightGradient {
  const float* x;   // (N, in.h, in.w, channels)
  const float* dy;  // (N, out.h, out.w, channels)
  int64_t channels, group;
  Pair2 in, out;
  int64_t stride;
  Pair2 padding;
};

struct GroupedKernels {
  int64_t lanes;  ///< channels in a vector
  /// Rows [begin, end) of the result, of one image.
  void (*sweep)(const GroupedSweep& sweep, int64_t image, int64_t begin, int64_t end);
  /// Writes sums (vectors, i, ky, kx, lanes) for vectors [first_vector, last_vector): the segment's share of
  /// the weight's gradient from input i of each lane's group. Prefetches `next`, the segment that is read
  /// after it.
  void (*weight_gradient)(const GroupedWeightGradient& gradient, const Segment& segment, const Segment& next,
                          int64_t first_vector, int64_t last_vector, float* sums);
};

}  // namespace palimpsest::kernels::cpu::conv2d
