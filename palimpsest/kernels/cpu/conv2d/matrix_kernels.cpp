// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/conv2d/matrix_kernels.h"

#include "palimpsest/kernels/cpu/simd/storage.h"
#include "palimpsest/kernels/cpu/simd/vector.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::ReadAhead;
using cpu::Stores;
using cpu::conv2d::ImageAccess;
using cpu::conv2d::MatrixKernels;
using cpu::conv2d::TileOutput;

namespace {

using V = Vector<float>;
constexpr int64_t kLanes = lanes<float, V>();
constexpr int64_t kVectors = 2;
constexpr int64_t kColumns = kVectors * kLanes;
// A tile has as many sums as registers hold beside two vectors of b, a broadcast and (without fused
// multiply-add) a product. With 32 registers it has 8 rows and not 12: 8 divides the usual numbers of
// channels, and 16 sums hide the latency of two units.
constexpr int64_t kRows = sizeof(V) == 64 ? 8 : sizeof(V) == 32 ? 6 : 4;
// kDepth steps of all columns of b take 32 KiB or less.
constexpr int64_t kDepth = 256;

/// Where step k finds the value of row r, and its vectors.
struct StepMajor {
  static constexpr bool kMasks = false, kStreams = false;
  int64_t a_step, b_step;
  int64_t at(int64_t k, int64_t r) const { return k * a_step + r; }
};
struct RowMajor {
  static constexpr bool kMasks = true, kStreams = true;
  static constexpr int64_t b_step = kColumns;
  int64_t a_stride;
  int64_t at(int64_t k, int64_t r) const { return r * a_stride + k; }
};
/// A stride that the compiler knows saves registers for addresses.
struct PackedRows {
  static constexpr bool kMasks = true, kStreams = false;
  static constexpr int64_t b_step = kColumns;
  static int64_t at(int64_t k, int64_t r) { return r * kDepth + k; }
};

/// kUsed: the vectors of b that hold the tile's columns.
template <class Order, int64_t kUsed>
void tile_of(Order order, int64_t count, const float* a, const float* b, const TileOutput& out,
             const ReadAhead& ahead) {
  constexpr int64_t kWidth = kUsed * kLanes;
  V sums[kRows][kUsed] = {};
  const bool streaming = Order::kStreams && out.stores == Stores::kStreaming;
  // Other tiles were summed since the last visit: these values have left the first-level cache.
  if (!streaming)
    for (int64_t r = 0; r < out.rows; ++r) {
      __builtin_prefetch(out.values + r * out.stride, 1);
      __builtin_prefetch(out.values + r * out.stride + out.columns - 1, 1);
    }
  const char* row_ahead = static_cast<const char*>(ahead.from);
  for (int64_t k = 0; k < count; row_ahead += ahead.row_bytes) {
    const int64_t end = count - k < ahead.row_steps ? count : k + ahead.row_steps;
    for (const char* next = row_ahead; k < end; ++k, next += ahead.step) {
      fetch_ahead(next);
      V from_b[kUsed];
#pragma GCC unroll 2
      for (int64_t v = 0; v < kUsed; ++v) from_b[v] = load<V>(b + k * order.b_step + v * kLanes);
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r) {
        // A broadcast: subtracting 0 changes no value, adding it changes -0.
        const V from_a = a[order.at(k, r)] - V{};
#pragma GCC unroll 2
        for (int64_t v = 0; v < kUsed; ++v) sums[r][v] += from_a * from_b[v];
      }
    }
  }
  if (out.rows == kRows && out.columns == kWidth) {
    const auto write = [&](const auto& write_vector) PALIMPSEST_INLINE_LAMBDA {
#pragma GCC unroll 8
      for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int64_t v = 0; v < kUsed; ++v) {
          float* const to = out.values + r * out.stride + v * kLanes;
          V value = out.add ? load<V>(to) + sums[r][v] : sums[r][v];
          if (Order::kMasks && out.mask)
            value = load<V>(out.mask + r * out.stride + v * kLanes) <= V{} ? V{} : value;
          write_vector(to, value);
        }
    };
    if (streaming)
      write([](float* to, V value) PALIMPSEST_INLINE_LAMBDA { store_streaming(to, value); });
    else
      write([](float* to, V value) PALIMPSEST_INLINE_LAMBDA { store(to, value); });
    return;
  }
  // The sums go through memory here: if they were indexed at run time, they would always lie in memory.
  float values[kRows * kWidth];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int64_t v = 0; v < kUsed; ++v) store(values + r * kWidth + v * kLanes, sums[r][v]);
  for (int64_t r = 0; r < out.rows; ++r) {
    float* const to = out.values + r * out.stride;
    const float* const from = values + r * kWidth;
    for (int64_t j = 0; j < out.columns; ++j) to[j] = out.add ? to[j] + from[j] : from[j];
    if (Order::kMasks && out.mask)
      for (int64_t j = 0; j < out.columns; ++j)
        if (out.mask[r * out.stride + j] <= 0) to[j] = 0;
  }
}

template <class Order>
void tile_of_any_width(Order order, int64_t count, const float* a, const float* b, const TileOutput& out,
                       const ReadAhead& ahead) {
  return out.columns <= kLanes ? tile_of<Order, 1>(order, count, a, b, out, ahead)
                               : tile_of<Order, kVectors>(order, count, a, b, out, ahead);
}

void tile(int64_t count, const float* a, int64_t a_step, const float* b, int64_t b_step,
          const TileOutput& out, const ReadAhead& ahead) {
  tile_of_any_width(StepMajor{a_step, b_step}, count, a, b, out, ahead);
}

void tile_of_rows(int64_t count, const float* a, int64_t a_stride, const float* b, const TileOutput& out,
                  const ReadAhead& ahead) {
  if (a_stride == kDepth && out.stores == Stores::kCached)
    tile_of_any_width(PackedRows{}, count, a, b, out, ahead);
  else
    tile_of_any_width(RowMajor{a_stride}, count, a, b, out, ahead);
}

/// Widens values [j, width) in vectors W, as long as whole ones are left. Returns the first value that is left.
template <class W, bool kReLU, class S>
PALIMPSEST_HOST_DEVICE int64_t widen_vectors(const S* from, int64_t j, int64_t width, float* to) {
  for (; j + lanes<float, W>() <= width; j += lanes<float, W>()) {
    const W v = load_as<W>(from + j);
    store(to + j, kReLU ? relu(v) : v);
  }
  return j;
}

template <bool kReLU, class S>
PALIMPSEST_HOST_DEVICE void widen_values(const S* from, int64_t width, float* to) {
  int64_t j = widen_vectors<V, kReLU>(from, 0, width, to);
  if constexpr (kLanes > 8) j = widen_vectors<typename LanesOf<float, 8>::type, kReLU>(from, j, width, to);
  if constexpr (kLanes > 4) j = widen_vectors<typename LanesOf<float, 4>::type, kReLU>(from, j, width, to);
  widen_vectors<float, kReLU>(from, j, width, to);
}

/// Copies `width` values, or their ReLU, as f32.
template <class S>
PALIMPSEST_HOST_DEVICE void copy(const S* from, int64_t width, bool of_relu, float* to) {
  if (of_relu)
    widen_values<true>(from, width, to);
  else if constexpr (kIs16Bit<S>)
    widen_values<false>(from, width, to);
  else
    __builtin_memcpy(to, from, 4 * width);
}

template <int64_t kWidth, class S>
void pack(int64_t count, const S* from, int64_t stride, int64_t width, bool relu, float* to) {
  if (width == kWidth) {
    for (int64_t k = 0; k < count; ++k) copy(from + k * stride, kWidth, relu, to + k * kWidth);
  } else {
    for (int64_t k = 0; k < count; ++k) {
      copy(from + k * stride, width, relu, to + k * kWidth);
      for (int64_t j = width; j < kWidth; ++j) to[k * kWidth + j] = 0;
    }
  }
}

template <class S>
void pack_rows(int64_t count, const S* from, int64_t stride, int64_t width, float* to) {
  pack<2 * kRows>(count, from, stride, width, false, to);
}

// streaming_fence is inline: its address would be a weak symbol, which a unit of one instruction set must not have.
void end_streaming() {
  streaming_fence();
}

/// Transposes kLanes x kLanes values: to[k * kColumns + j] = from[j * stride + k].
void transpose(const float* from, int64_t stride, float* to) {
  V rows[kLanes];
#pragma GCC unroll 16
  for (int64_t j = 0; j < kLanes; ++j) rows[j] = load<V>(from + j * stride);
#pragma GCC unroll 4
  for (int64_t step = 1; step < kLanes; step *= 2) {
    V next[kLanes];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleave<0>(rows[i], rows[i + kLanes / 2]);
      next[2 * i + 1] = interleave<1>(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int64_t i = 0; i < kLanes; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int64_t k = 0; k < kLanes; ++k) store(to + k * kColumns, rows[k]);
}

void pack_transposed(int64_t count, const float* from, int64_t stride, int64_t width, float* to) {
  const int64_t whole_k = count / kLanes * kLanes, whole_j = width / kLanes * kLanes;
  for (int64_t k = 0; k < whole_k; k += kLanes)
    for (int64_t j = 0; j < whole_j; j += kLanes)
      transpose(from + j * stride + k, stride, to + k * kColumns + j);
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t j = k < whole_k ? whole_j : 0; j < width; ++j) to[k * kColumns + j] = from[j * stride + k];
    for (int64_t j = width; j < kColumns; ++j) to[k * kColumns + j] = 0;
  }
}

template <class S>
void copy_rows(int64_t count, const S* from, int64_t stride, int64_t width, bool relu, float* to) {
  for (int64_t r = 0; r < count; ++r) copy(from + r * stride, width, relu, to + r * kDepth);
}

/// Returns the sums of one vector, 0 where the mask is <= 0.
template <class W, class S>
PALIMPSEST_HOST_DEVICE W masked(const float* sums, const S* mask) {
  const W value = load<W>(sums);
  if (!mask) return value;
  return load_as<W>(mask) <= W{} ? W{} : value;
}

template <class S>
void write_tile(int64_t rows, int64_t columns, const float* sums, S* to, int64_t stride, const S* mask) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* const from = sums + r * kColumns;
    S* const row = to + r * stride;
    const S* const mask_row = mask ? mask + r * stride : nullptr;
    const auto at = [&](int64_t j) PALIMPSEST_INLINE_LAMBDA { return mask_row ? mask_row + j : nullptr; };
    int64_t j = 0;
    for (; j + kLanes <= columns; j += kLanes) store_as(row + j, masked<V>(from + j, at(j)), false);
    for (; j < columns; ++j) store_as(row + j, masked<float>(from + j, at(j)), false);
  }
}

template <class S>
constexpr ImageAccess<S> kImages{pack_rows<S>, pack<kColumns, S>, copy_rows<S>, write_tile<S>};

}  // namespace

extern const MatrixKernels kMatrix;
const MatrixKernels kMatrix{kRows,           2 * kRows,      kColumns,         kColumns / kVectors,
                            kDepth,          tile,           tile_of_rows,     end_streaming,
                            pack_transposed, kImages<float>, kImages<Float16>, kImages<BFloat16>};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
