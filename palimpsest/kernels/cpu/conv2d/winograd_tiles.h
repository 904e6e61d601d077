#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cpu/conv2d/range.h"
#include "palimpsest/kernels/cpu/conv2d/winograd_kernels.h"
#include "palimpsest/kernels/cpu/simd/prefetch.h"

#include <algorithm>
#include <cstdint>
#include <vector>

/// What both kinds of products of winograd.h share: the tiles of images, and their transformed inputs.
namespace palimpsest::kernels::cpu::conv2d {

inline constexpr int64_t kElements = 16;  ///< of a transformed tile
/// So many tasks occupy many cores, and end at about the same time on few.
inline constexpr int64_t kWinogradTasks = 32;
/// Transformed weights, or sums of the weight gradient, that exist at one time.
inline constexpr int64_t kWeightFloats = int64_t{2} << 20;

/// The images of one tensor, whose values lie in S. Pixels outside of an image read as zeros.
template <class S>
class Images {
 public:
  Images(const void* values, Pair2 size, int64_t channels)
      : values_(static_cast<const S*>(values)),
        size_(size),
        channels_(channels),
        zeros_(static_cast<std::size_t>(channels)) {}

  /// Returns the offset of a pixel's first channel; -1 if it lies outside.
  int64_t offset(int64_t image, int64_t h, int64_t w) const {
    if (h < 0 || h >= size_.h || w < 0 || w >= size_.w) return -1;
    return ((image * size_.h + h) * size_.w + w) * channels_;
  }
  const S* pixel(int64_t image, int64_t h, int64_t w) const {
    const int64_t at = offset(image, h, w);
    return at < 0 ? zeros_.data() : values_ + at;
  }

  /// Returns the rows of pixels before that of (image, h), over all images.
  int64_t rows_before(int64_t image, int64_t h) const {
    return image * size_.h + std::clamp<int64_t>(h, 0, size_.h);
  }
  Prefetch prefetch(Range rows, int64_t products, int64_t steps) const {
    const int64_t row = size_.w * channels_;
    return Prefetch::of_bytes(values_ + rows.begin * row, rows.size() * row * static_cast<int64_t>(sizeof(S)),
                              products, steps);
  }

 private:
  const S* const values_;
  const Pair2 size_;
  const int64_t channels_;
  const std::vector<S> zeros_;
};

/// The tiles of an output: 2x2 pixels each, `dilation` apart.
class Tiles {
 public:
  Tiles(int64_t images, Pair2 out, Pair2 dilation)
      : images_(images), rows_(origins(out.h, dilation.h)), columns_(origins(out.w, dilation.w)) {}

  /// Returns the tiles along one dimension of `size` outputs.
  static int64_t along(int64_t size, int64_t dilation) {
    const int64_t both = 2 * dilation;
    return size / both * dilation + std::min(size % both, dilation);
  }

  struct Tile {
    int64_t image, h, w;  ///< of the first output
  };
  int64_t count() const { return images_ * per_image(); }
  Tile tile(int64_t i) const {
    const auto columns = static_cast<int64_t>(columns_.size());
    const int64_t place = i % per_image();
    return {i / per_image(), rows_[place / columns], columns_[place % columns]};
  }

 private:
  static std::vector<int64_t> origins(int64_t size, int64_t dilation) {
    std::vector<int64_t> result;
    result.reserve(static_cast<std::size_t>(along(size, dilation)));
    for (int64_t first = 0; first < std::min(size, dilation); ++first)
      for (int64_t i = first; i < size; i += 2 * dilation) result.push_back(i);
    return result;
  }
  int64_t per_image() const { return static_cast<int64_t>(rows_.size() * columns_.size()); }

  const int64_t images_;
  const std::vector<int64_t> rows_, columns_;
};

/// Returns what the tiles `next` read and those before them did not: rows of pixels with all their channels. Nothing if
/// the tiles skip rows. `products` of so many steps prefetch it. next.begin > 0.
template <class S>
Prefetch prefetch_input(const Images<S>& images, const Tiles& tiles, Range next, Pair2 dilation,
                        int64_t padding, int64_t products, int64_t steps) {
  if (dilation.h * dilation.w != 1 || products == 0) return {};
  const auto rows_before_end = [&](int64_t i) {
    const Tiles::Tile tile = tiles.tile(i);
    return images.rows_before(tile.image, tile.h - padding + 4);
  };
  const Range rows{rows_before_end(next.begin - 1), rows_before_end(next.end - 1)};
  return rows.size() > 0 ? images.prefetch(rows, products, steps) : Prefetch();
}

/// Row r of the transformed inputs of a tile combines these two rows of its 4x4 input pixels.
inline constexpr int64_t kFirstRow[4] = {0, 1, 2, 1}, kSecondRow[4] = {2, 2, 1, 3};

/// Finds row i of the input pixels of a tile, from a channel on. The first pixel of the tile is (h, w) of `first`.
template <class S>
void find_pixels(const Images<S>& images, Tiles::Tile first, Pair2 dilation, int64_t i, int64_t channel,
                 const S* row[4]) {
  for (int64_t j = 0; j < 4; ++j)
    row[j] = images.pixel(first.image, first.h + i * dilation.h, first.w + j * dilation.w) + channel;
}

}  // namespace palimpsest::kernels::cpu::conv2d
