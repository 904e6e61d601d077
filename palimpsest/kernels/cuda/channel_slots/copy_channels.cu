#include "palimpsest/kernels/cuda/channel_slots.h"

#include "palimpsest/kernels/cuda/device/divisor.cuh"
#include "palimpsest/kernels/cuda/device/panels.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace palimpsest::kernels::cuda {
namespace {

// Enough to occupy every multiprocessor; a thread of a larger copy takes several values.
constexpr int64_t kMostBlocks = 1024;

enum class Direction { kGather, kScatter };

/// Where the values of both tensors lie: as (outer, C, inner) and (outer, count, inner). Offsets in `part` have
/// 32 bits: a division of 64 bits is a call, which spills.
struct Places {
  int64_t channels, inner;
  int32_t values;  ///< of `part`
  Divisor<int32_t> by_inner, by_count;

  Places(const AbnProblem& problem, int64_t images, int64_t count)
      : channels(problem.shape.c),
        inner(problem.layout == Layout::kNCHW ? problem.shape.s : 1),
        values(static_cast<int32_t>(images * count * problem.shape.s)),
        by_inner(static_cast<int32_t>(inner)),
        by_count(static_cast<int32_t>(count)) {}
};

/// Grid: up to kMostBlocks blocks, whose threads step through `part` together.
template <Direction kDirection, class Full, class Part>
__global__ void __launch_bounds__(kThreads)
    copy_channels_kernel(Places places, const int64_t* index, Full* full, Part* part) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < places.values; at += step) {
    auto rest = static_cast<int32_t>(at);
    const int32_t inner = places.by_inner.take_remainder(rest), slot = places.by_count.take_remainder(rest);
    int64_t channel = index[slot];
    const bool is_used = channel >= 0;
    if (!is_used) channel += places.channels;
    // The host has not read the index, which may come from anywhere: no access lies outside of the tensors.
    const bool exists = channel >= 0 && channel < places.channels;
    const auto in_full = [&] { return (rest * places.channels + channel) * places.inner + inner; };
    if constexpr (kDirection == Direction::kGather)
      part[at] = exists ? full[in_full()] : Part{0};
    else if (is_used && exists)
      full[in_full()] = part[at];
  }
}

/// `full` and `part` are the tensors of kernels/channel_slots.h, as integers of their values' size.
template <Direction kDirection, class Full, class Part>
void copy_channels(const AbnProblem& problem, const int64_t* index, int64_t count, Full* full, Part* part,
                   Stream stream) {
  const auto [n, c, s] = problem.shape;
  if (n * count * s == 0) return;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (count * s > kMost)
    throw std::invalid_argument("[abn] an image has " + std::to_string(count * s) +
                                " values in slots, on a GPU at most 2147483647");
  const int64_t images = kMost / (count * s);
  for (int64_t first = 0; first < n; first += images) {
    const Places places(problem, std::min(images, n - first), count);
    const LaunchShape shape{
        .blocks = std::min(kMostBlocks, ceil_divide(int64_t{places.values}, int64_t{kThreads})),
        .threads = kThreads};
    launch("copy_channels", shape, stream, copy_channels_kernel<kDirection, Full, Part>, places, index,
           full + first * c * s, part + first * count * s);
  }
}

/// Calls copy(Value{}) with an integer of the size of the problem's values.
template <class Copy>
void with_value(const AbnProblem& problem, const Copy& copy) {
  switch (size_of(problem.dtype)) {
    case 2:
      return copy(uint16_t{});
    case 4:
      return copy(uint32_t{});
    default:
      return copy(uint64_t{});
  }
}

}  // namespace

void gather_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* full,
                     void* part, Stream stream) {
  with_value(problem, [&]<class Value>(Value) {
    copy_channels<Direction::kGather>(problem, index, count, static_cast<const Value*>(full),
                                      static_cast<Value*>(part), stream);
  });
}

void scatter_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* part,
                      void* full, Stream stream) {
  with_value(problem, [&]<class Value>(Value) {
    copy_channels<Direction::kScatter>(problem, index, count, static_cast<Value*>(full),
                                       static_cast<const Value*>(part), stream);
  });
}

}  // namespace palimpsest::kernels::cuda
