#include "palimpsest/kernels/cpu/conv2d/pointwise.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/conv2d/image_type.h"
#include "palimpsest/kernels/cpu/conv2d/matrix_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/range.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/block.h"
#include "palimpsest/kernels/cpu/simd/prefetch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>

namespace palimpsest::kernels::cpu::conv2d {
namespace {

// Tiles of pixels that are multiplied together; they and a tile of the weights stay in the second-level cache.
constexpr int64_t kMostRowTiles = 12;
// Tiles of columns per task if their sums are read again: with kMostRowTiles they take 192 KiB.
constexpr int64_t kMostTilesPerTask = 16;
constexpr int64_t kFewestTilesPerTask = 2;  // each task reads its pixels
constexpr int64_t kProductTasks = 32;  // so many occupy many cores, and end at about the same time on few

struct PackedWeights;
struct CopiedPixels;
struct UnroundedSums;

/// to = from * w, or from * transposed w. Rows are pixels, whose values lie in S.
template <class S>
class PointwiseProduct {
 public:
  /// depth: the channels of `from`; width: those of `to`.
  /// relu: reads max(from, 0). mask: null, or of the size of `to`, which becomes 0 where mask <= 0.
  PointwiseProduct(const Conv2dProblem& problem, const void* from, int64_t depth, int64_t width, bool relu,
                   const void* mask, void* to)
      : problem_(problem),
        kernels_(current_instruction_set().matrix),
        images_(kernels_.images<S>()),
        from_(static_cast<const S*>(from)),
        mask_(static_cast<const S*>(mask)),
        to_(static_cast<S*>(to)),
        depth_(depth),
        width_(width),
        relu_(relu),
        every_pixel_(problem.stride.h * problem.stride.w == 1),
        copies_(kRounds || relu || !every_pixel_),
        row_tiles_(ceil_divide(pixels(), kernels_.rows)),
        column_tiles_(ceil_divide(width, kernels_.columns)),
        chunks_(ceil_divide(depth, kernels_.depth)),
        blocks_(ceil_divide(row_tiles_, kMostRowTiles)),
        stores_(streams() ? Stores::kStreaming : Stores::kCached) {}

  /// transposed: w is (width, depth), else (depth, width).
  void write(const float* w, bool transposed) const {
    float* const b = scratch<PackedWeights>(column_tiles_ * depth_ * kernels_.columns);
    parallel_tasks(column_tiles_, [&](int64_t t) {
      const int64_t first = t * kernels_.columns, some = std::min(kernels_.columns, width_ - first);
      float* const to = b + first * depth_;
      if (transposed)
        kernels_.pack_transposed(depth_, w + first * depth_, depth_, some, to);
      else
        kernels_.images<float>().pack_columns(depth_, w + first, width_, some, /*relu=*/false, to);
    });
    const int64_t row_tasks = std::min(blocks_, kProductTasks);
    const int64_t fewest = chunks_ > 1 ? ceil_divide(column_tiles_, kMostTilesPerTask) : 1;
    const int64_t column_tasks = std::clamp(ceil_divide(kProductTasks, row_tasks), fewest,
                                            std::max(fewest, column_tiles_ / kFewestTilesPerTask));
    parallel_tasks(row_tasks * column_tasks, [&](int64_t i) {
      multiply(part(blocks_, i / column_tasks, row_tasks),
               part(column_tiles_, i % column_tasks, column_tasks), b);
    });
  }

 private:
  static constexpr int64_t kSize = sizeof(S), kFloatSize = sizeof(float);
  static constexpr bool kRounds = kSize < kFloatSize;

  struct Rows {
    const float* values;
    int64_t stride;
  };

  /// Whether tiles write whole lines, once, which leave the caches before they are read.
  bool streams() const {
    return !kRounds && chunks_ == 1 && pixels() * width_ * kSize > kCachedBytes &&
           kernels_.columns * kSize % kLineBytes == 0 && width_ * kSize % kLineBytes == 0 &&
           reinterpret_cast<uintptr_t>(to_) % kLineBytes == 0;
  }

  int64_t pixels() const { return problem_.n * problem_.out.h * problem_.out.w; }
  Range pixels_of(int64_t block) const {
    const Range tiles = part(row_tiles_, block, blocks_);
    return {tiles.begin * kernels_.rows, std::min(tiles.end * kernels_.rows, pixels())};
  }

  void multiply(Range blocks, Range tiles, const float* b) const {
    const int64_t tile_size = kernels_.rows * kernels_.columns;
    float* const a = scratch<CopiedPixels>(kMostRowTiles * kernels_.rows * kernels_.depth);
    // Sums of several chunks are rounded at the end.
    const int64_t waiting = chunks_ > 1 ? tiles.size() * kMostRowTiles : 1;
    float* const sums = kRounds ? scratch<UnroundedSums>(waiting * tile_size) : nullptr;
    const auto weights = [&](int64_t column, Range depth) {
      return b + column * depth_ + depth.begin * kernels_.columns;
    };
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Range pixels = pixels_of(block);
      const int64_t row_tiles = ceil_divide(pixels.size(), kernels_.rows);
      // Odd row tiles prefetch the next tile of the weights, the others the pixels that are read after this chunk.
      const int64_t odd = tiles.size() * chunks_ > 1 ? row_tiles / 2 : 0, even = row_tiles - odd;
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
        const Range depth = part(depth_, chunk, chunks_);
        // A tile reads all its rows: those of a tile with fewer pixels are copied in any case.
        const int64_t first_copied = copies_ ? 0 : pixels.size() / kernels_.rows * kernels_.rows;
        copy({pixels.begin + first_copied, pixels.end}, depth, a + first_copied * kernels_.depth);
        const bool is_last = chunk + 1 == chunks_;
        const Range depth_after = part(depth_, is_last ? 0 : chunk + 1, chunks_);
        Prefetch next_pixels;
        if (!is_last || block + 1 < blocks.end)
          next_pixels = prefetch(is_last ? pixels_of(block + 1) : pixels, depth_after, tiles.size() * even,
                                 depth.size());
        for (int64_t t = tiles.begin; t < tiles.end; ++t) {
          const int64_t column = t * kernels_.columns, columns = std::min(kernels_.columns, width_ - column);
          const bool is_last_tile = t + 1 == tiles.end;
          const Range next_depth = is_last_tile ? depth_after : depth;
          const int64_t next_column =
              is_last_tile ? tiles.begin * kernels_.columns : column + kernels_.columns;
          Prefetch next_weights;
          if (odd > 0)
            next_weights =
                Prefetch::of_bytes(weights(next_column, next_depth),
                                   next_depth.size() * kernels_.columns * kFloatSize, odd, depth.size());
          for (int64_t r = 0; r < row_tiles; ++r) {
            const int64_t row = r * kernels_.rows, rows = std::min(kernels_.rows, pixels.size() - row);
            const int64_t at = (pixels.begin + row) * width_ + column,
                          call = (t - tiles.begin) * row_tiles + r;
            const S* const mask = mask_ && is_last ? mask_ + at : nullptr;
            const Rows from = row < first_copied ? rows_of_image(pixels.begin + row, depth.begin)
                                                 : Rows{a + row * kernels_.depth, kernels_.depth};
            const auto multiply_tile = [&](const TileOutput& out) {
              kernels_.tile_of_rows(depth.size(), from.values, from.stride, weights(column, depth), out,
                                    (odd > 0 && r % 2 == 1 ? next_weights : next_pixels).next(a));
            };
            if constexpr (kRounds) {
              float* const tile = sums + (chunks_ > 1 ? call * tile_size : 0);
              // The lines that write_tile writes: without this its stores wait for memory.
              if (is_last)
                for (int64_t i = 0; i < rows; ++i) {
                  __builtin_prefetch(to_ + at + i * width_, 1);
                  __builtin_prefetch(to_ + at + i * width_ + columns - 1, 1);
                }
              multiply_tile(
                  {tile, kernels_.columns, kernels_.rows, round_up(columns, kernels_.lanes), chunk > 0});
              if (is_last) images_.write_tile(rows, columns, tile, to_ + at, width_, mask);
            } else {
              multiply_tile({to_ + at, width_, rows, columns, chunk > 0, mask, stores_});
            }
          }
        }
      }
    }
    if (stores_ == Stores::kStreaming) kernels_.end_streaming();
  }

  /// Returns the rows of an f32 image from a pixel on, from a channel on.
  Rows rows_of_image(int64_t pixel, int64_t channel) const {
    return {reinterpret_cast<const float*>(from_ + pixel * depth_ + channel), depth_};
  }

  /// Returns what to prefetch for some channels of some pixels: nothing if the convolution skips pixels.
  Prefetch prefetch(Range pixels, Range depth, int64_t products, int64_t steps) const {
    if (!every_pixel_) return {};
    const S* const from = from_ + pixels.begin * depth_ + depth.begin;
    if (chunks_ == 1) return Prefetch::of_bytes(from, pixels.size() * depth_ * kSize, products, steps);
    return Prefetch::of_rows(from, pixels.size(), depth.size() * kSize, depth_ * kSize, products, steps);
  }

  /// Copies some channels of the pixels that these outputs read.
  void copy(Range pixels, Range depth, float* to) const {
    if (every_pixel_) {
      images_.copy_rows(pixels.size(), from_ + pixels.begin * depth_ + depth.begin, depth_, depth.size(),
                        relu_, to);
      return;
    }
    for (int64_t p = pixels.begin; p < pixels.end;) {
      const int64_t row = p / problem_.out.w, ow = p % problem_.out.w,
                    run = std::min(problem_.out.w - ow, pixels.end - p);
      const int64_t ih = row % problem_.out.h * problem_.stride.h;
      const int64_t pixel =
          (row / problem_.out.h * problem_.in.h + ih) * problem_.in.w + ow * problem_.stride.w;
      images_.copy_rows(run, from_ + pixel * depth_ + depth.begin, problem_.stride.w * depth_, depth.size(),
                        relu_, to);
      to += run * kernels_.depth;
      p += run;
    }
  }

  const Conv2dProblem& problem_;
  const MatrixKernels& kernels_;
  const ImageAccess<S>& images_;
  const S* const from_;
  const S* const mask_;
  S* const to_;
  const int64_t depth_, width_;
  const bool relu_, every_pixel_;
  const bool copies_;  ///< pixels before they are multiplied, else reads them in the image
  const int64_t row_tiles_, column_tiles_, chunks_, blocks_;
  const Stores stores_;
};

}  // namespace

bool fits_pointwise_forward(const Conv2dProblem& problem) {
  return problem.groups == 1 && problem.kernel_size.h * problem.kernel_size.w == 1 &&
         problem.padding.h == 0 && problem.padding.w == 0 && problem.c_in >= 16 && problem.c_out >= 16;
}

bool fits_pointwise_backward_input(const Conv2dProblem& problem) {
  return fits_pointwise_forward(problem) && problem.stride.h * problem.stride.w == 1;
}

void pointwise_forward(const Conv2dProblem& problem, const void* x, const float* w, void* y) {
  dispatch_images(problem, [&]<class S>() {
    PointwiseProduct<S>(problem, x, problem.c_in, problem.c_out, problem.relu_x, /*mask=*/nullptr, y)
        .write(w, /*transposed=*/true);
  });
}

void pointwise_backward_input(const Conv2dProblem& problem, const void* dy, const float* w, const void* x,
                              void* dx) {
  const void* const mask = problem.relu_x ? x : nullptr;
  dispatch_images(problem, [&]<class S>() {
    PointwiseProduct<S>(problem, dy, problem.c_out, problem.c_in, /*relu=*/false, mask, dx)
        .write(w, /*transposed=*/false);
  });
}

}  // namespace palimpsest::kernels::cpu::conv2d
