// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/conv2d/weight_gradient_kernels.h"

#include "palimpsest/kernels/cpu/simd/vector.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::conv2d::ReadAhead;
using cpu::conv2d::TileOutput;
using cpu::conv2d::WeightGradientKernels;

namespace {

using V = Vector<float>;
constexpr int64_t kLanes = lanes<float, V>();
constexpr int64_t kVectors = 2;
constexpr int64_t kColumns = kVectors * kLanes;
// A tile has as many sums as registers hold beside two vectors of b, a broadcast and (without fused
// multiply-add) a product. With 32 registers it has 8 rows and not 12: 8 divides the usual numbers of
// channels, and 16 sums hide the latency of two units.
constexpr int64_t kRows = sizeof(V) == 64 ? 8 : sizeof(V) == 32 ? 6 : 4;

/// kUsed: the vectors of b that hold the tile's columns.
template <int64_t kUsed>
void tile_of(int64_t count, const float* a, const float* b, const TileOutput& out, ReadAhead ahead) {
  V sums[kRows][kUsed] = {};
  // Other tiles were summed since the last visit: these values have left the first-level cache.
  for (int64_t r = 0; r < out.rows; ++r) {
    __builtin_prefetch(out.values + r * out.stride, 1);
    __builtin_prefetch(out.values + r * out.stride + out.columns - 1, 1);
  }
  for (int64_t k = 0; k < count; ++k) {
    __builtin_prefetch(ahead.from + k * ahead.step, 0, 2);
    V from_b[kUsed];
#pragma GCC unroll 2
    for (int64_t v = 0; v < kUsed; ++v) from_b[v] = load<V>(b + k * kColumns + v * kLanes);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) {
      const V from_a =
          a[k * kRows + r] - V{};  // a broadcast: subtracting 0 changes no value, adding it changes -0
#pragma GCC unroll 2
      for (int64_t v = 0; v < kUsed; ++v) sums[r][v] += from_a * from_b[v];
    }
  }
  // The sums go through memory here: if they were indexed at run time, they would always lie in memory.
  constexpr int64_t kWidth = kUsed * kLanes;
  float values[kRows * kWidth];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kUsed; ++v) store(values + r * kWidth + v * kLanes, sums[r][v]);
  for (int64_t r = 0; r < out.rows; ++r) {
    float* const to = out.values + r * out.stride;
    const float* const from = values + r * kWidth;
    for (int64_t j = 0; j < out.columns; ++j) to[j] = out.add ? to[j] + from[j] : from[j];
  }
}

void tile(int64_t count, const float* a, const float* b, const TileOutput& out, ReadAhead ahead) {
  return out.columns <= kLanes ? tile_of<1>(count, a, b, out, ahead)
                               : tile_of<kVectors>(count, a, b, out, ahead);
}

template <int64_t kWidth>
void pack(int64_t count, const float* from, int64_t stride, int64_t width, float* to) {
  if (width == kWidth) {
    for (int64_t k = 0; k < count; ++k) __builtin_memcpy(to + k * kWidth, from + k * stride, 4 * kWidth);
  } else {
    for (int64_t k = 0; k < count; ++k)
      for (int64_t j = 0; j < kWidth; ++j) to[k * kWidth + j] = j < width ? from[k * stride + j] : 0;
  }
}

}  // namespace

extern const WeightGradientKernels kWeightGradient;
const WeightGradientKernels kWeightGradient{kRows, kColumns, tile, pack<kRows>, pack<kColumns>};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
