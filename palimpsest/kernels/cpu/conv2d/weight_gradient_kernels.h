#pragma once

#include <cstdint>

/// What cpu/conv2d_weight.cpp asks of an instruction set: one tile of a product of matrices, and packing for
/// it. Each set compiles the same source (conv2d_weight_kernels.cpp) into a namespace of its own and hands
/// out one table.
namespace palimpsest::kernels::cpu {

/// Where a tile of the result goes: rows x columns values, the rows `stride` values apart.
struct TileOutput {
  float* values;
  int64_t stride;
  int64_t rows, columns;  ///< at most those of a whole tile
  bool add;               ///< to what is there
};

/// Memory that will be read soon: `step` values further at each step of the product.
struct ReadAhead {
  const float* from;
  int64_t step;
};

struct WeightGradientKernels {
  int64_t rows;     ///< of a tile: output channels, broadcast one by one
  int64_t columns;  ///< of a tile: input channels, in vectors

  /// out[r][j] = sum over k < count of a[k][r] * b[k][j], where a has `rows` values a step and b `columns`.
  void (*tile)(int64_t count, const float* a, const float* b, const TileOutput& out, ReadAhead ahead);

  /// to[k][j] = from[k * stride + j] for j < width, and 0 for the rest of a row of to, which has `rows`
  /// (`columns`) values; k < count.
  void (*pack_rows)(int64_t count, const float* from, int64_t stride, int64_t width, float* to);
  void (*pack_columns)(int64_t count, const float* from, int64_t stride, int64_t width, float* to);
};

}  // namespace palimpsest::kernels::cpu
