#include "palimpsest/kernels/cpu/conv2d/weight_gradient.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/conv2d/weight_gradient_kernels.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>

namespace palimpsest::kernels::cpu {
namespace {

// Pixels that are multiplied at a time: with them a tile's columns take 24 KiB, and stay in the first cache.
constexpr int64_t kPixels = 192;
// Of these so many are packed at a time: all their channels in turn, while they stay in the first cache.
constexpr int64_t kPackedAtOnce = 32;
// Tiles of rows and of columns that a task packs, each once for all of the others: 192 KiB each, so that they
// stay in the second cache. More columns if there are so few rows that both take no more than 512 KiB.
constexpr int64_t kRowTiles = 32;
constexpr int64_t kColumnTiles = 8;
constexpr int64_t kPackedBytes = int64_t{512} << 10;
// Pieces of the work, if there are pixels enough: to occupy many cores, and to end together on few.
constexpr int64_t kTasks = 32;
constexpr int64_t kFewestPixels = 1024;              // of a task
constexpr int64_t kPartialBytes = int64_t{8} << 20;  // of all segments' sums

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// Part `i` of `parts` of [0, count).
Range part(int64_t count, int64_t i, int64_t parts) {
  return {count * i / parts, count * (i + 1) / parts};
}

struct PartialSums;
struct PackedRows;
struct PackedColumns;

/// dw as a matrix: rows are the output channels of all groups; columns are a group's (ky, kx, i), in tiles
/// that end at the last i of each (ky, kx).
class WeightGradient {
 public:
  WeightGradient(const Conv2dProblem& layer, const float* x, const float* dy)
      : l_(layer),
        k_(current_instruction_set().weight_gradient),
        x_(x),
        dy_(dy),
        tiles_each_(ceil_divide(l_.group_in(), k_.columns)),
        column_tiles_(l_.kernel_size.h * l_.kernel_size.w * tiles_each_),
        row_blocks_(ceil_divide(l_.group_out(), kRowTiles * k_.rows)),
        column_blocks_(packed_bytes() <= kPackedBytes ? 1 : ceil_divide(column_tiles_, kColumnTiles)) {
    const int64_t blocks = l_.groups * row_blocks_ * column_blocks_;
    const int64_t room = kPartialBytes / static_cast<int64_t>(sizeof(float)) / l_.weights();
    contiguous_ =
        blocks == 1 && l_.kernel_size.h * l_.kernel_size.w == 1 && l_.in.h == l_.out.h && l_.in.w == l_.out.w;
    segments_ = std::max<int64_t>(1, std::min({ceil_divide(kTasks, blocks), pixels() / kFewestPixels, room}));
  }

  void write(float* dw) const {
    const int64_t blocks = l_.groups * row_blocks_ * column_blocks_, size = l_.weights();
    float* const sums = segments_ == 1 ? dw : scratch<PartialSums>(segments_ * size);
    parallel_tasks(segments_ * blocks, [&](int64_t i) {
      const int64_t segment = i / blocks, column_block = i % column_blocks_,
                    row = i % blocks / column_blocks_;
      multiply(part(pixels(), segment, segments_), row / row_blocks_,
               part(l_.group_out(), row % row_blocks_, row_blocks_),
               part(column_tiles_, column_block, column_blocks_), sums + segment * size);
    });
    if (segments_ == 1) return;
    parallel_ranges(size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dw[i] = sums[i];
      for (int64_t segment = 1; segment < segments_; ++segment)
        for (int64_t i = begin; i < end; ++i) dw[i] += sums[segment * size + i];
    });
  }

 private:
  int64_t pixels() const { return l_.n * l_.out.h * l_.out.w; }

  /// Of all rows and columns of a group at kPixels pixels.
  int64_t packed_bytes() const {
    return (l_.group_out() + column_tiles_ * k_.columns) * kPixels * static_cast<int64_t>(sizeof(float));
  }

  /// Rows and tiles of columns of one group, summed over some pixels.
  void multiply(Range all_pixels, int64_t group, Range rows, Range tiles, float* dw) const {
    const int64_t row_tiles = ceil_divide(rows.size(), k_.rows);
    const int64_t a_size = k_.rows * kPixels, b_size = k_.columns * kPixels;  // of a packed tile
    float* const a = scratch<PackedRows>(row_tiles * a_size);
    float* const b = scratch<PackedColumns>(tiles.size() * b_size);
    const int64_t row_size = l_.kernel_size.h * l_.kernel_size.w * l_.group_in();
    const int64_t first_row = group * l_.group_out() + rows.begin;
    const auto height = [&](int64_t r) { return std::min(k_.rows, rows.size() - r * k_.rows); };
    for (int64_t p = all_pixels.begin; p < all_pixels.end; p += kPixels) {
      const Range pixels{p, std::min(p + kPixels, all_pixels.end)};
      for (int64_t q = p; q < pixels.end; q += kPackedAtOnce) {
        const Range some{q, std::min(q + kPackedAtOnce, pixels.end)};
        for (int64_t r = 0; r < row_tiles; ++r)
          k_.pack_rows(some.size(), dy_ + q * l_.c_out + first_row + r * k_.rows, l_.c_out, height(r),
                       a + r * a_size + (q - p) * k_.rows);
        for (int64_t t = tiles.begin; t < tiles.end; ++t) {
          const Column c = column(t);
          pack_columns(some, c.position, group * l_.group_in() + c.first, c.width,
                       b + (t - tiles.begin) * b_size + (q - p) * k_.columns);
        }
      }
      for (int64_t t = tiles.begin; t < tiles.end; ++t) {
        const Column c = column(t);
        for (int64_t r = 0; r < row_tiles; ++r) {
          float* const to = dw + (first_row + r * k_.rows) * row_size + c.position * l_.group_in() + c.first;
          k_.tile(pixels.size(), a + r * a_size, b + (t - tiles.begin) * b_size,
                  {to, row_size, height(r), c.width, p > all_pixels.begin},
                  read_ahead(pixels.end, (t - tiles.begin) * row_tiles + r, tiles.size() * row_tiles, a));
        }
      }
    }
  }

  /// What a tile of columns holds: channels [first, first + width) of a group at a position of the kernel.
  struct Column {
    int64_t position, first, width;
  };
  Column column(int64_t tile) const {
    const int64_t first = tile % tiles_each_ * k_.columns;
    return {tile / tiles_each_, first, std::min(k_.columns, l_.group_in() - first)};
  }

  /// What call number `call` of `calls` fetches of the pixels that come next, so that packing them need not
  /// wait for memory: of a 1x1 kernel, whose next pixels are the next bytes. `nothing`: memory at hand.
  ReadAhead read_ahead(int64_t pixel, int64_t call, int64_t calls, const float* nothing) const {
    if (!contiguous_ || pixel + kPixels > pixels()) return {nothing, 0};
    const int64_t step = ceil_divide(l_.c_in + l_.c_out, calls), at = call * kPixels * step;
    const int64_t of_input = kPixels * l_.c_in;
    if (at < of_input) return {x_ + pixel * l_.c_in + at, step};
    if (at - of_input < kPixels * l_.c_out) return {dy_ + pixel * l_.c_out + at - of_input, step};
    return {nothing, 0};
  }

  /// The input that position (ky, kx) of the kernel meets at these outputs: channels [channel, channel +
  /// width), zero outside of the image.
  void pack_columns(Range pixels, int64_t position, int64_t channel, int64_t width, float* to) const {
    const int64_t shift_h = position / l_.kernel_size.w * l_.dilation.h - l_.padding.h;
    const int64_t shift_w = position % l_.kernel_size.w * l_.dilation.w - l_.padding.w;
    // Outputs whose pixel lies in the image: 0 <= ow * stride + shift_w < in.w.
    const int64_t low = shift_w < 0 ? ceil_divide(-shift_w, l_.stride.w) : 0;
    const int64_t high = shift_w < l_.in.w ? (l_.in.w - 1 - shift_w) / l_.stride.w + 1 : 0;
    const auto zeros = [&](int64_t count) { std::fill_n(to, count * k_.columns, 0.0F); };
    for (int64_t p = pixels.begin; p < pixels.end;) {
      const int64_t row = p / l_.out.w, ow = p % l_.out.w, run = std::min(l_.out.w - ow, pixels.end - p);
      const int64_t ih = row % l_.out.h * l_.stride.h + shift_h;
      const bool inside = ih >= 0 && ih < l_.in.h;
      const int64_t begin = inside ? std::clamp(low, ow, ow + run) : ow + run;
      const int64_t end = inside ? std::clamp(high, begin, ow + run) : ow + run;
      zeros(begin - ow);
      to += (begin - ow) * k_.columns;
      if (end > begin) {
        const int64_t pixel = (row / l_.out.h * l_.in.h + ih) * l_.in.w + begin * l_.stride.w + shift_w;
        k_.pack_columns(end - begin, x_ + pixel * l_.c_in + channel, l_.stride.w * l_.c_in, width, to);
        to += (end - begin) * k_.columns;
      }
      zeros(ow + run - end);
      to += (ow + run - end) * k_.columns;
      p += run;
    }
  }

  const Conv2dProblem& l_;
  const WeightGradientKernels& k_;
  const float* const x_;
  const float* const dy_;
  const int64_t tiles_each_, column_tiles_, row_blocks_, column_blocks_;
  bool contiguous_;
  int64_t segments_;
};

}  // namespace

bool conv2d_weight_fits(const Conv2dProblem& layer) {
  return layer.group_in() >= 32 && layer.group_out() >= 16;
}

void conv2d_weight(const Conv2dProblem& layer, const float* x, const float* dy, float* dw) {
  WeightGradient(layer, x, dy).write(dw);
}

}  // namespace palimpsest::kernels::cpu
