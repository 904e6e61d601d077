#pragma once

#include <cstdint>

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
};

/// Memory that will be read soon; each step of the product prefetches `step` values further.
struct ReadAhead {
  const float* from;
  int64_t step;
};

struct MatrixKernels {
  int64_t rows;     ///< of a tile: values that are broadcast one by one
  int64_t columns;  ///< of a tile: values in vectors
  int64_t lanes;    ///< of a vector
  int64_t depth;    ///< the most steps of tile_of_rows: the distance of the rows of its `a`

  /// out[r][j] = sum over k < count of a[k * a_step + r] * b[k * b_step + j]. Reads all rows and all vectors of
  /// each step, even if `out` has fewer rows and its last vector fewer columns.
  void (*tile)(int64_t count, const float* a, int64_t a_step, const float* b, int64_t b_step,
               const TileOutput& out, ReadAhead ahead);
  /// The same with a[r * depth + k] and b[k * columns + j].
  void (*tile_of_rows)(int64_t count, const float* a, const float* b, const TileOutput& out, ReadAhead ahead);

  // The packing. `relu`: packs max(from, 0), so that a product reads what an activation would have written.

  /// to[k][j] = from[k * stride + j] for j < width and k < count; the rest of each row of `to`, which has
  /// `rows` (`columns`) values, becomes 0.
  void (*pack_rows)(int64_t count, const float* from, int64_t stride, int64_t width, float* to);
  void (*pack_columns)(int64_t count, const float* from, int64_t stride, int64_t width, bool relu, float* to);
  /// to[k][j] = from[j * stride + k]; the rest of each row of `columns` values becomes 0.
  void (*pack_transposed)(int64_t count, const float* from, int64_t stride, int64_t width, float* to);
  /// to[r][k] = from[r * stride + k] for r < count and k < width <= depth; each row of `to` has `depth`
  /// values.
  void (*copy_rows)(int64_t count, const float* from, int64_t stride, int64_t width, bool relu, float* to);
};

}  // namespace palimpsest::kernels::cpu::conv2d
