#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::data {

/// The filters of Pillow's Image.resize, widened to the pixels that become one when an image shrinks.
enum class Filter {
  kBilinear,  ///< a triangle, two pixels wide
  kBicubic    ///< Keys' cubic with a = -0.5, four pixels wide
};

/// Pixels [begin, end) of one axis.
struct PixelRange {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// The source pixels of each output pixel along one axis of a resize, with their weights.
class ResizeAxis {
 public:
  /// What one axis of a resize does: the source pixels from `low` up to `high`, which may be fractions, become
  /// `size` pixels, of which `wanted` is computed. The filter sees no source pixel outside `visible`.
  struct Mapping {
    PixelRange visible;
    double low, high;
    int64_t size;
    PixelRange wanted;
  };

  /// The weights are those of Pillow: f64 until they are rounded to multiples of 2^-22.
  /// Source: Pillow, src/libImaging/Resample.c (the algorithm).
  ResizeAxis(const Mapping& mapping, Filter filter);

  int64_t size() const { return static_cast<int64_t>(first_.size()); }
  /// Returns the source pixels that have a weight; the whole axis needs no others.
  PixelRange source() const { return source_; }
  /// Returns whether output pixel i is source pixel source().begin + i.
  bool copies() const { return copies_; }

  /// Output pixel i is the sum of `taps(i)` source pixels from source().begin + first(i) on, each times its
  /// weight in multiples of 2^-kWeightBits.
  int64_t first(int64_t i) const { return first_[i] - source_.begin; }
  int64_t taps(int64_t i) const { return count_[i]; }
  const int32_t* weights(int64_t i) const { return weights_.data() + i * most_taps_; }

  static constexpr int kWeightBits = 22;

 private:
  std::vector<int64_t> first_, count_;  // one per output pixel
  std::vector<int32_t> weights_;        // (size, most_taps_)
  int64_t most_taps_ = 0;
  PixelRange source_{};
  bool copies_ = true;
};

/// Resizes the part of a picture at rows.source() x columns.source(), u8 (H, W, 3) and contiguous, to u8
/// (rows.size(), columns.size(), 3). Columns first, then rows; each pass rounds to whole grey levels. The
/// result equals that of Pillow's Image.resize bit by bit. Pillow 13 does the rows first for some shapes that
/// shrink the height much more than the width; then the bilinear results differ by at most one grey level.
/// Throws std::invalid_argument if the picture is not such a part.
at::Tensor resize(const at::Tensor& part, const ResizeAxis& rows, const ResizeAxis& columns);

/// Resizes a whole picture u8 (H, W, 3), as Image.resize((width, height), filter) does.
at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width, Filter filter);

}  // namespace palimpsest::data
