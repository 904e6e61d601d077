#include "palimpsest/kernels/cpu/abn/partition.h"

#include "palimpsest/kernels/cpu/simd/stores.h"

#include <algorithm>

namespace palimpsest::kernels::cpu::abn {
namespace {

// Pixels. Larger planes (12x12, 32 images) take up to 1.4 times as long in strips if they lie in a cache or are of 16
// bits. In f32 from memory, strips of 14x14 to 20x20 take 0.8 to 1.07 times as long, and 0.3 to 0.8 times where
// streaming stores write another tensor. f64 is not measured.
constexpr int64_t kStripPlane = 100, kStripPlaneFromMemory = 400;
constexpr int64_t kStripColumns = 1024;  // with their sums and arguments, most of the first-level cache
constexpr int64_t kStripValues = 65536;  // 256 KiB of f32
constexpr int64_t kLeastTasks = 16;      // so that as many threads have work

/// Returns the channels per strip: so many that its rows are long runs of memory, and so few that the two
/// tensors of a backward pass stay in the caches of one core. The number is a power of two, so that
/// rows of many planes are whole cache lines. 1: the planes are swept one by one.
int64_t strip_channels(Shape3 shape, DType dtype) {
  // The arguments of a strip are set once for all its images. Of one image, strips take 1.5 times as long.
  constexpr int64_t kFewestImages = 4;
  const bool from_memory =
      dtype == DType::f32 && shape.n >= kFewestImages && shape.elements() * int64_t{4} > kCachedBytes;
  if (shape.s > (from_memory ? kStripPlaneFromMemory : kStripPlane)) return 1;
  int64_t channels = 1;
  const auto fits = [&](int64_t count) {
    return count * kLeastTasks <= shape.c && count * shape.s <= kStripColumns &&
           count * shape.s * shape.n <= kStripValues;
  };
  while (fits(2 * channels)) channels *= 2;
  return channels;
}

/// Returns how many neighbouring pixels are one row of columns. Rows of few channels leave vectors empty, and the
/// start of a row costs more than its values: with SiLU and 8 channels five times as much as rows of 128 values.
int64_t pixels_per_row_of(int64_t channels, int64_t pixels) {
  constexpr int64_t kShortRow = 64, kRow = 128;
  if (channels >= kShortRow) return 1;
  int64_t count = std::min(kRow / channels, pixels);
  while (pixels % count != 0) --count;
  return count;
}

// Panels of columns begin at multiples of this: rows of whole cache lines.
constexpr int64_t kColumnUnit = 32;

/// Returns how many panels `channels` columns make: with these segments about kLeastTasks pieces, unless their rows
/// would be short. They are equal but for a unit, and none is wider than kMaxColumns.
int64_t column_panels(int64_t channels, int64_t segments) {
  constexpr int64_t kLeastWidth = 128;
  return std::max(ceil_divide(channels, kMaxColumns),
                  std::min(kLeastTasks / segments, channels / kLeastWidth));
}

}  // namespace

Partition::Partition(Shape3 shape, Layout layout, DType dtype) : shape_(shape) {
  // With one pixel per image, or one channel, both layouts are the same bytes, and only one has long rows.
  geometry_ =
      shape.c == 1 || (layout == Layout::kNCHW && shape.s > 1) ? Geometry::kPlane : Geometry::kColumns;
  if (geometry_ == Geometry::kColumns) {
    pixels_per_row_ = pixels_per_row_of(shape.c, shape.n * shape.s);
    shape = shape_ = {1, shape.c * pixels_per_row_, shape.n * shape.s / pixels_per_row_};
  }
  const int64_t values = shape.per_channel();
  if (geometry_ == Geometry::kColumns) {
    segments_ = std::clamp<int64_t>(ceil_divide(values, 128), 1, 64);
    panels_ = pixels_per_row_ > 1 ? 1 : column_panels(shape.c, segments_);
    return;
  }
  panel_width_ = strip_channels(shape, dtype);
  panels_ = ceil_divide(shape.c, panel_width_);
  if (panel_width_ > 1) {
    geometry_ = Geometry::kStrip;
    segments_ = 1;
  } else {
    segments_ = std::clamp<int64_t>(values / 65536, 1, 64);
    if (segments_ > shape.n) {
      pixel_parts_ = std::min(ceil_divide(segments_, shape.n), shape.s);
      segments_ = shape.n * pixel_parts_;
    }
  }
}

int64_t Partition::values(int64_t segment) const {
  return piece(0, segment).values;
}

Piece Partition::piece(int64_t panel, int64_t segment) const {
  const auto [n, c, s] = shape_;
  if (geometry_ == Geometry::kPlane) {
    const int64_t groups = segments_ / pixel_parts_, group = segment / pixel_parts_,
                  part = segment % pixel_parts_;
    const int64_t n0 = n * group / groups, n1 = n * (group + 1) / groups;
    const int64_t s0 = s * part / pixel_parts_, s1 = s * (part + 1) / pixel_parts_;
    const int64_t begin = (n0 * c + panel) * s + s0;
    const int64_t after = part + 1 < pixel_parts_ ? begin + s1 - s0       // the same images
                          : group + 1 < groups    ? (n1 * c + panel) * s  // the next images
                                                  : (panel + 1) * s;         // the next channel
    return {{n1 - n0, c * s, s1 - s0, 0, after - begin}, begin, panel, 1, (n1 - n0) * (s1 - s0)};
  }
  if (geometry_ == Geometry::kStrip) {
    const int64_t c0 = panel * panel_width_, c1 = std::min(c, c0 + panel_width_);
    const int64_t width = (c1 - c0) * s;
    return {{n, c * s, width, s, width}, c0 * s, c0, c1 - c0, n * s};
  }
  const int64_t units = ceil_divide(c, kColumnUnit), rows = n * s;
  const int64_t c0 = units * panel / panels_ * kColumnUnit,
                c1 = std::min(c, units * (panel + 1) / panels_ * kColumnUnit);
  const int64_t r0 = rows * segment / segments_, r1 = rows * (segment + 1) / segments_;
  return {{r1 - r0, c, c1 - c0}, r0 * c + c0, c0, c1 - c0, r1 - r0};
}

}  // namespace palimpsest::kernels::cpu::abn
