#pragma once

#include "palimpsest/base/half.h"

#include <cstdint>
#include <type_traits>

/// The functions that an instruction set provides for winograd.cpp: the transforms of one tile, for 16 or more
/// channels. Each set compiles winograd_kernels.cpp into its own namespace and provides one table.
///
/// With the matrices B^T, G and A^T below, two outputs of one dimension are, for four inputs d and weights g,
///   y = A^T [(G g) * (B^T d)], elementwise in the brackets; in two dimensions y = A^T [(G g G^T) * (B^T d B)] A
///   B^T = 1  0 -1  0     G = 1    0    0      A^T = 1  1  1  0
///         0  1  1  0         1/2  1/2  1/2          0  1 -1 -1
///         0 -1  1  0         1/2 -1/2  1/2
///         0  1  0 -1         0    0    1
/// Source: Lavin, Gray, "Fast Algorithms for Convolutional Neural Networks", F(2x2, 3x3).
namespace palimpsest::kernels::cpu::conv2d {

/// Where a transform writes row r of a 4x4 tile: channel c of column q goes to
///   to[q][c / width * distance + c % width].
struct TileRow {
  float* to[4];
  int64_t width;     ///< of a panel of channels; the last panel has 16 channels or more
  int64_t distance;  ///< of panels
};

/// Where the 2x2 outputs of a tile lie, row by row: offsets of their first channels, -1 outside of the image.
struct TilePixels {
  int64_t offsets[4];
};

/// The transforms that read or write images, whose values lie in S: f32, f16 or bf16.
template <class S>
struct WinogradTransforms {
  /// Row r of B^T d B. `first` and `second` are the four pixels of the two rows of d that row r combines:
  /// 0 and 2, 1 and 2, 2 and 1, 1 and 3. relu: d is max(pixel, 0).
  void (*input_row)(int64_t r, const S* const first[4], const S* const second[4], int64_t channels, bool relu,
                    const TileRow& row);
  /// Row r of A dy A^T. dy: the 2x2 pixels, row by row.
  void (*gradient_row)(int64_t r, const S* const dy[4], int64_t channels, const TileRow& row);
  /// y = A^T m A for some tiles. Element p of the 4x4 matrix m of tile t lies at m + t * tile_distance + p * step.
  /// mask: null, or values that lie like y, which becomes 0 where they are <= 0.
  void (*output)(int64_t tiles, const float* m, int64_t tile_distance, int64_t step, int64_t channels,
                 const TilePixels* pixels, S* y, const S* mask);
};

struct WinogradKernels {
  WinogradTransforms<float> images_f32;
  WinogradTransforms<Float16> images_f16;
  WinogradTransforms<BFloat16> images_bf16;
  /// G w G^T for one output channel and some input channels: element p goes to to + p * step, and position k
  /// of the window comes from w + k * distance. rotate: by 180 degrees.
  void (*weights)(const float* w, int64_t distance, int64_t channels, bool rotate, float* to, int64_t step);
  /// dw = G^T s G, where element p of s lies at s + p * step, and position k of dw at dw + k * distance.
  void (*weight_gradient)(const float* s, int64_t step, int64_t channels, float* dw, int64_t distance);

  template <class S>
  const WinogradTransforms<S>& images() const {
    if constexpr (std::is_same_v<S, float>) return images_f32;
    if constexpr (std::is_same_v<S, Float16>) return images_f16;
    if constexpr (std::is_same_v<S, BFloat16>) return images_bf16;
  }
};

}  // namespace palimpsest::kernels::cpu::conv2d
