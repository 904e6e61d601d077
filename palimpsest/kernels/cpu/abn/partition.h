#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cpu/abn/table.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::abn {

/// One piece of a tensor: some channels, and some of their values.
struct Piece {
  Block block;
  int64_t offset = 0;         ///< of the block's first value, from the tensor's first
  int64_t first_channel = 0;  ///< the channels are [first_channel, first_channel + channels)
  int64_t channels = 0;
  int64_t values = 0;  ///< per channel
};

/// The geometries of table.h.
enum class Geometry { kPlane, kStrip, kColumns };

/// Cuts an (N, C, S) tensor into panels (sets of channels) x segments (sets of values). The cut depends on
/// shape, layout and dtype alone, and partial sums are added in segment order: the bytes do not depend on the number
/// of threads.
///   plane     a panel is one channel; a segment is some of its images, or part of their pixels
///   strip     a panel is neighbouring channels whose planes are small; one segment
///   columns   a panel is up to kMaxColumns neighbouring channels, fewer where segments are few; a segment is a run of
///             pixels. Where there are few channels, neighbouring pixels are one row: column j belongs to channel
///             j % C, and what is said of channels here is said of columns
/// Block::next of a plane is the block after it in a sweep that takes panel by panel; of a strip, the strip beside it.
class Partition {
 public:
  Partition(Shape3 shape, Layout layout, DType dtype);

  Geometry geometry() const { return geometry_; }
  int64_t panels() const { return panels_; }
  int64_t pixels_per_row() const { return pixels_per_row_; }  ///< 1 but for columns of few channels
  int64_t segments() const { return segments_; }
  int64_t values(int64_t segment) const;  ///< per channel, or column
  Piece piece(int64_t panel, int64_t segment) const;

 private:
  Shape3 shape_;
  Geometry geometry_;
  int64_t panels_, segments_;
  int64_t panel_width_ = 1;  ///< strip: channels per panel
  int64_t pixel_parts_ = 1;  ///< plane: segments that share their images
  int64_t pixels_per_row_ = 1;
};

}  // namespace palimpsest::kernels::cpu::abn
