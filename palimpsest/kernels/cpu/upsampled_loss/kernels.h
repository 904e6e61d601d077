#pragma once

#include <cstdint>

/// The functions that an instruction set provides for upsampled_loss.cpp: single-threaded, over one
/// row of the image. Each set compiles kernels.cpp into its own namespace and provides one table per type.
///
/// A map row holds the pixels of one row of the small map, channels together: (width + 1) x stride values,
/// where stride is the number of channels rounded up to whole vectors. Logits behind the last channel, and
/// those of the pixel behind the last one, are kLowest: their softmax is 0.
namespace palimpsest::kernels::cpu::upsampled_loss {

template <class T>
inline constexpr T kLowest = sizeof(T) == sizeof(float) ? T(-1e37) : T(-1e300);

/// A row of the image, between two map rows.
template <class T>
struct Row {
  const T* top = nullptr;
  const T* bottom = nullptr;
  T bottom_weight = 0;
  /// Per pixel, and as many more as make a whole vector: the column of the map at its left, the weight of the
  /// next column.
  const int32_t* left = nullptr;
  const T* right_weight = nullptr;
  int64_t pixels = 0, width = 0, stride = 0, channels = 0;
  T* blended = nullptr;  ///< scratch: a map row
  T* logits = nullptr;   ///< scratch: one pixel of a map row, on the boundary of a vector
};

/// What is asked of the pixels of a row.
template <class T>
struct PixelLosses {
  // Values per pixel have room for a whole vector, and targets are -1 there.
  const int32_t* target = nullptr;  ///< -1: the pixel is skipped
  const T* class_weight =
      nullptr;           ///< stride values, 0 behind the last channel; null without label smoothing
  T* gap = nullptr;      ///< per pixel: max z - z[t]
  T* log_sum = nullptr;  ///< per pixel: log sum_c exp(z[c] - max z); room for a whole vector more
  T* smooth = nullptr;   ///< per pixel: sum_c w[c] (max z - z[c]); null without label smoothing
  // The gradient of the map rows; null: not asked for.
  T* top_gradient = nullptr;
  T* bottom_gradient = nullptr;
  T* row_gradient = nullptr;  ///< scratch: a map row
  const T* scale = nullptr;   ///< per class t: the factor of p
  const T* hit = nullptr;     ///< per class t: what is subtracted at t
  const T* offset = nullptr;  ///< stride values: what is subtracted everywhere; null without smoothing
};

template <class T>
struct Sweeps {
  /// Lanes of a vector.
  int64_t lanes;
  void (*losses)(const Row<T>& row, const PixelLosses<T>& asked);
  void (*argmax)(const Row<T>& row, int32_t* ids);
};

struct Kernels {
  Sweeps<float> f32;
  Sweeps<double> f64;
};

}  // namespace palimpsest::kernels::cpu::upsampled_loss
