#pragma once

#include <cstdint>

/// The functions that an instruction set provides for weight_gradient.cpp: one tile of a matrix product, and
/// the packing for it. Each set compiles weight_gradient_kernels.cpp into its own namespace and provides one
/// table.
namespace palimpsest::kernels::cpu::conv2d {

/// The place of a tile in the result: rows x columns values, the rows `stride` values apart.
struct TileOutput {
  float* values;
  int64_t stride;
  int64_t rows, columns;  ///< at most those of a whole tile
  bool add;               ///< adds to the values, else overwrites them
};

/// Memory that will be read soon; each step of the product prefetches `step` values further.
struct ReadAhead {
  const float* from;
  int64_t step;
};

struct WeightGradientKernels {
  int64_t rows;     ///< of a tile: output channels, broadcast one by one
  int64_t columns;  ///< of a tile: input channels, in vectors

  /// out[r][j] = sum over k < count of a[k][r] * b[k][j], where a has `rows` values per step and b `columns`.
  void (*tile)(int64_t count, const float* a, const float* b, const TileOutput& out, ReadAhead ahead);

  /// to[k][j] = from[k * stride + j] for j < width and k < count; the rest of each row of `to`, which has
  /// `rows` (`columns`) values, becomes 0.
  void (*pack_rows)(int64_t count, const float* from, int64_t stride, int64_t width, float* to);
  void (*pack_columns)(int64_t count, const float* from, int64_t stride, int64_t width, float* to);
};

}  // namespace palimpsest::kernels::cpu::conv2d
