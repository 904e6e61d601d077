#pragma once

#include "palimpsest/base/half.h"
#include "palimpsest/kernels/cpu/simd/prefetch.h"
#include "palimpsest/kernels/cpu/simd/stores.h"

#include <cstdint>
#include <type_traits>

/// The functions that an instruction set provides for convolutions that are matrix products
/// (weight_gradient.cpp, pointwise.cpp): one tile of a product, and the packing for it. Each set compiles
/// matrix_kernels.cpp into its own namespace and provides one table.
namespace palimpsest::kernels::cpu::conv2d {

/// The place of a tile in the result: rows x columns values, the rows `stride` values apart.
struct TileOutput {
  float* values;
  int64_t stride;
  int64_t rows, columns;  ///< at most those of a whole tile
  bool add;               ///< adds to the values, else overwrites them
  /// tile_of_rows: null, or values that lie as those of the result, which becomes 0 where they are <= 0.
  const float* mask = nullptr;
  /// tile_of_rows: kStreaming for values whose vectors lie on their boundaries. Call end_streaming at the end.
  Stores stores = Stores::kCached;
};

/// The functions that read and write images, whose values lie in S: f32, or 16 bits that are widened to f32
/// when they are packed. `relu`: packs max(from, 0), so that a product reads what an activation would have
/// written.
template <class S>
struct ImageAccess {
  /// to[k][j] = from[k * stride + j] for j < width and k < count; the rest of each row of `to`, which has
  /// `packed_rows` values (`columns`, those of a tile), becomes 0.
  void (*pack_rows)(int64_t count, const S* from, int64_t stride, int64_t width, float* to);
  void (*pack_columns)(int64_t count, const S* from, int64_t stride, int64_t width, bool relu, float* to);
  /// to[r][k] = from[r * stride + k] for r < count and k < width <= depth; each row of `to` has `depth`
  /// values.
  void (*copy_rows)(int64_t count, const S* from, int64_t stride, int64_t width, bool relu, float* to);
  /// to[r * stride + j] = sums[r][j], rounded once, for r < rows and j < columns; each row of `sums` has the
  /// columns of a whole tile. mask: null, or values that lie as `to`, which becomes 0 where they are <= 0.
  void (*write_tile)(int64_t rows, int64_t columns, const float* sums, S* to, int64_t stride, const S* mask);
};

struct MatrixKernels {
  int64_t rows;         ///< of a tile: values that are broadcast one by one
  int64_t packed_rows;  ///< of two tiles, which pack_rows packs together: copies of one are short
  int64_t columns;      ///< of a tile: values in vectors
  int64_t lanes;        ///< of a vector
  int64_t depth;        ///< the most steps of a tile whose columns stay in the first-level cache

  /// out[r][j] = sum over k < count of a[k * a_step + r] * b[k * b_step + j]. Reads all rows and all vectors of
  /// each step, even if `out` has fewer rows and its last vector fewer columns.
  void (*tile)(int64_t count, const float* a, int64_t a_step, const float* b, int64_t b_step,
               const TileOutput& out, const ReadAhead& ahead);
  /// The same with a[r * a_stride + k] and b[k * columns + j].
  void (*tile_of_rows)(int64_t count, const float* a, int64_t a_stride, const float* b, const TileOutput& out,
                       const ReadAhead& ahead);
  /// Makes streaming stores visible to other threads before all later stores.
  void (*end_streaming)();

  /// to[k][j] = from[j * stride + k]; the rest of each row of `columns` values becomes 0.
  void (*pack_transposed)(int64_t count, const float* from, int64_t stride, int64_t width, float* to);

  ImageAccess<float> images_f32;
  ImageAccess<Float16> images_f16;
  ImageAccess<BFloat16> images_bf16;

  template <class S>
  const ImageAccess<S>& images() const {
    if constexpr (std::is_same_v<S, float>) return images_f32;
    if constexpr (std::is_same_v<S, Float16>) return images_f16;
    if constexpr (std::is_same_v<S, BFloat16>) return images_bf16;
  }
};

}  // namespace palimpsest::kernels::cpu::conv2d
