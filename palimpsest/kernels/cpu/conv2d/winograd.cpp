#include "palimpsest/kernels/cpu/conv2d/winograd.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/conv2d/image_type.h"
#include "palimpsest/kernels/cpu/conv2d/matrix_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/range.h"
#include "palimpsest/kernels/cpu/conv2d/winograd_tiles.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/prefetch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>
#include <array>
#include <vector>

namespace palimpsest::kernels::cpu::conv2d {
namespace {

struct TransformedWeights;
struct TransformedRows;
struct TransformedInput;
struct Products;

/// A convolution of stride 1: of x with w, or of dy with w turned by 180 degrees. The values of the images lie
/// in S.
template <class S>
class WinogradProduct {
 public:
  struct Arguments {
    const void* from;
    Pair2 in, out, padding, dilation;
    int64_t images, groups, depth, width;  ///< depth: the channels of a group of `from`; width: those of `to`
    bool relu;                             ///< reads max(from, 0)
    const void* mask;                      ///< null, or of the size of `to`, which becomes 0 where mask <= 0
    void* to;
  };

  explicit WinogradProduct(const Arguments& arguments)
      : arguments_(arguments),
        kernels_(current_instruction_set().winograd),
        transforms_(kernels_.images<S>()),
        matrix_(current_instruction_set().matrix),
        from_(arguments.from, arguments.in, arguments.groups * arguments.depth),
        to_(arguments.to, arguments.out, arguments.groups * arguments.width),
        tiles_(arguments.images, arguments.out, arguments.dilation),
        column_tiles_(ceil_divide(arguments.width, matrix_.columns)),
        groups_at_once_(std::clamp<int64_t>(
            std::min(matrix_.depth / arguments.depth, kWeightFloats / (column_tiles_ * weights_per_tile())),
            1, arguments.groups)),
        chunks_(ceil_divide(arguments.depth, matrix_.depth)),
        chunk_(ceil_divide(groups_at_once_ * arguments.depth, chunks_)),
        per_row_(std::clamp<int64_t>(matrix_.depth / chunk_, 1, kElements)),
        rows_per_tile_(ceil_divide(kElements, per_row_) * chunks_),
        tiles_per_block_(matrix_.rows * std::clamp(kMostRows / rows_per_tile_ / matrix_.rows, kFewestRowTiles,
                                                   kMostRowTiles)),
        blocks_(ceil_divide(tiles_.count(), tiles_per_block_)) {
    for (int64_t p = 0; p < kElements; ++p)
      offsets_[static_cast<std::size_t>(p)] =
          p / per_row_ * tiles_per_block_ * matrix_.depth + p % per_row_ * chunk_;
  }

  /// forward: w is (groups * width, 3, 3, depth); else (groups * depth, 3, 3, width), and is turned.
  void write(const float* w, bool forward) const {
    // Columns are those of all groups. Those of groups_at_once_ groups stay together.
    const int64_t unit = groups_at_once_ > 1 ? groups_at_once_ * column_tiles_ : 1;
    const int64_t columns = arguments_.groups * column_tiles_;
    const int64_t at_once = std::max(unit, round_down(kWeightFloats / weights_per_tile(), unit));
    for (int64_t begin = 0; begin < columns; begin += at_once) {
      const Range some{begin, std::min(begin + at_once, columns)};
      float* const weights = scratch<TransformedWeights>(some.size() * weights_per_tile());
      transform_weights(w, forward, some, weights);
      const int64_t row_tasks = std::min(blocks_, kWinogradTasks), units = ceil_divide(some.size(), unit);
      // Where groups are narrow, each task transforms the inputs of its own; else all inputs.
      const int64_t column_tasks =
          unit > 1 ? units
                   : std::clamp<int64_t>(ceil_divide(kWinogradTasks, row_tasks), 1,
                                         std::max<int64_t>(arguments_.groups, units / kFewestColumnTiles));
      parallel_tasks(row_tasks * column_tasks, [&](int64_t i) {
        const Range of_units = part(units, i % column_tasks, column_tasks);
        const Range task{begin + of_units.begin * unit, std::min(begin + of_units.end * unit, some.end)};
        multiply(part(blocks_, i / column_tasks, row_tasks), task,
                 weights + (task.begin - begin) * weights_per_tile());
      });
    }
  }

 private:
  // Rows of `depth` values (1 KiB) per block of transformed inputs: half of the second-level cache.
  static constexpr int64_t kMostRows = 512;
  // Tiles of rows that one panel of weights serves. Few: the panel comes from the third-level cache each time.
  static constexpr int64_t kFewestRowTiles = 4, kMostRowTiles = 8;
  static constexpr int64_t kFewestColumnTiles = 2;  // per task: each transforms its inputs

  int64_t weights_per_tile() const { return kElements * arguments_.depth * matrix_.columns; }

  /// Returns the channels of a tile of columns within its group. The last tile has a vector or more: it takes
  /// a vector from the one before it, if need be.
  Range channels_of(int64_t column) const {
    const int64_t tile = column % column_tiles_;
    const auto begin = [&](int64_t i) {
      const int64_t rest = arguments_.width - i * matrix_.columns;
      return i * matrix_.columns - (i > 0 && rest > 0 && rest < matrix_.lanes ? matrix_.lanes : 0);
    };
    return {begin(tile), std::min(begin(tile + 1), arguments_.width)};
  }

  /// Fills panels of (element, depth, columns) per tile of columns.
  void transform_weights(const float* w, bool forward, Range column_tiles, float* to) const {
    constexpr int64_t kInputs = 64;  // transformed together: 128 KiB
    const int64_t depth = arguments_.depth, width = arguments_.width, columns = matrix_.columns;
    const int64_t parts = ceil_divide(depth, kInputs);
    parallel_tasks(column_tiles.size() * parts, [&](int64_t task) {
      const int64_t tile = task / parts, group = (column_tiles.begin + tile) / column_tiles_;
      const Range channels = channels_of(column_tiles.begin + tile), k = part(depth, task % parts, parts);
      float* const panel = to + tile * weights_per_tile() + k.begin * columns;
      if (!forward) {
        for (int64_t o = k.begin; o < k.end; ++o)
          kernels_.weights(w + (group * depth + o) * 9 * width + channels.begin, width, channels.size(),
                           /*rotate=*/true, panel + (o - k.begin) * columns, depth * columns);
        return;
      }
      float* const rows = scratch<TransformedRows>(kElements * columns * kInputs);
      for (int64_t o = 0; o < channels.size(); ++o)
        kernels_.weights(w + (group * width + channels.begin + o) * 9 * depth + k.begin, depth, k.size(),
                         /*rotate=*/false, rows + o * kInputs, columns * kInputs);
      for (int64_t p = 0; p < kElements; ++p)
        matrix_.pack_transposed(k.size(), rows + p * columns * kInputs, kInputs, channels.size(),
                                panel + p * depth * columns);
    });
  }

  /// Returns where row `t` of element p and chunk `chunk` lies among the transformed inputs.
  int64_t row_offset(int64_t p, int64_t chunk, int64_t t) const {
    const int64_t row = chunk * (rows_per_tile_ / chunks_);
    return (row * tiles_per_block_ + t) * matrix_.depth + offsets_[static_cast<std::size_t>(p)];
  }

  /// Computes some tiles of columns, of one group or of at most groups_at_once_ groups.
  void multiply(Range blocks, Range column_tiles, const float* weights) const {
    float* const input = scratch<TransformedInput>(rows_per_tile_ * tiles_per_block_ * matrix_.depth);
    const int64_t step = tiles_per_block_ * matrix_.columns;
    float* const products = scratch<Products>(kElements * step);
    std::vector<TilePixels> pixels(static_cast<std::size_t>(tiles_per_block_));
    while (column_tiles.size() > 0) {
      const int64_t group = column_tiles.begin / column_tiles_;
      const Range some{column_tiles.begin,
                       std::min((group + groups_at_once_) * column_tiles_, column_tiles.end)};
      const int64_t groups = ceil_divide(some.end, column_tiles_) - group;
      for (int64_t block = blocks.begin; block < blocks.end; ++block) {
        const Range tiles = part(tiles_.count(), block, blocks_);
        for (int64_t t = 0; t < tiles.size(); ++t) {
          const Tiles::Tile tile = tiles_.tile(tiles.begin + t);
          transform(tile, t, group * arguments_.depth, groups * arguments_.depth, input);
          pixels[static_cast<std::size_t>(t)] = pixels_of(tile);
        }
        Prefetch next_pixels;
        if (block + 1 < blocks.end && groups == arguments_.groups)
          next_pixels = prefetch_input(from_, tiles_, part(tiles_.count(), block + 1, blocks_),
                                       arguments_.dilation, arguments_.padding.h,
                                       some.size() * kElements * chunks_ * odd_row_tiles(tiles.size()),
                                       std::min(chunk_, arguments_.depth));
        for (int64_t column = some.begin; column < some.end; ++column) {
          const float* const panels = weights + (column - column_tiles.begin) * weights_per_tile();
          const Range channels = channels_of(column);
          const int64_t place = column / column_tiles_ - group;  // of the group among those at once
          for (int64_t p = 0; p < kElements; ++p)
            multiply_element(p, tiles.size(), channels.size(), input + place * arguments_.depth, panels,
                             products + p * step, next_pixels);
          const int64_t channel = column / column_tiles_ * arguments_.width + channels.begin;
          transforms_.output(tiles.size(), products, matrix_.columns, step, channels.size(), pixels.data(),
                             static_cast<S*>(arguments_.to) + channel,
                             arguments_.mask ? static_cast<const S*>(arguments_.mask) + channel : nullptr);
        }
      }
      weights += some.size() * weights_per_tile();
      column_tiles.begin = some.end;
    }
  }

  /// Odd tiles of rows prefetch the next block's pixels, the others the next panel of weights. Where a panel serves few
  /// tiles, it needs all.
  int64_t odd_row_tiles(int64_t tiles) const {
    const int64_t row_tiles = ceil_divide(tiles, matrix_.rows);
    return row_tiles > kFewestRowTiles ? row_tiles / 2 : 0;
  }

  /// `to` holds whole tiles, of which the last rows and columns may be meaningless.
  void multiply_element(int64_t p, int64_t tiles, int64_t columns, const float* input, const float* panels,
                        float* to, Prefetch& next_pixels) const {
    const int64_t row_tiles = ceil_divide(tiles, matrix_.rows), odd = odd_row_tiles(tiles);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const Range depth{chunk * chunk_, std::min((chunk + 1) * chunk_, arguments_.depth)};
      const float* const panel = panels + (p * arguments_.depth + depth.begin) * matrix_.columns;
      const int64_t size = depth.size() * matrix_.columns;  // of a panel
      auto next_panel = Prefetch::of_bytes(panel + size, size * static_cast<int64_t>(sizeof(float)),
                                           row_tiles - odd, depth.size());
      for (int64_t r = 0; r < row_tiles; ++r) {
        const int64_t row = r * matrix_.rows;
        matrix_.tile_of_rows(depth.size(), input + row_offset(p, chunk, row), matrix_.depth, panel,
                             {to + row * matrix_.columns, matrix_.columns, matrix_.rows,
                              round_up(columns, matrix_.lanes), chunk > 0},
                             (odd > 0 && r % 2 == 1 ? next_pixels : next_panel).next(panel));
      }
    }
  }

  void transform(Tiles::Tile tile, int64_t t, int64_t channel, int64_t channels, float* to) const {
    const Tiles::Tile first{tile.image, tile.h - arguments_.padding.h, tile.w - arguments_.padding.w};
    const S* pixels[4][4];
    for (int64_t i = 0; i < 4; ++i) find_pixels(from_, first, arguments_.dilation, i, channel, pixels[i]);
    for (int64_t r = 0; r < 4; ++r) {
      TileRow row{{}, chunk_, rows_per_tile_ / chunks_ * tiles_per_block_ * matrix_.depth};
      for (int64_t q = 0; q < 4; ++q) row.to[q] = to + row_offset(4 * r + q, 0, t);
      transforms_.input_row(r, pixels[kFirstRow[r]], pixels[kSecondRow[r]], channels, arguments_.relu, row);
    }
  }

  TilePixels pixels_of(Tiles::Tile tile) const {
    TilePixels pixels;
    for (int64_t i = 0; i < 4; ++i)
      pixels.offsets[i] = to_.offset(tile.image, tile.h + i / 2 * arguments_.dilation.h,
                                     tile.w + i % 2 * arguments_.dilation.w);
    return pixels;
  }

  const Arguments arguments_;
  const WinogradKernels& kernels_;
  const WinogradTransforms<S>& transforms_;
  const MatrixKernels& matrix_;
  const Images<S> from_, to_;
  const Tiles tiles_;
  const int64_t column_tiles_;    ///< of a group
  const int64_t groups_at_once_;  ///< narrow groups, whose transformed inputs share rows
  const int64_t chunks_, chunk_;  ///< parts of the depth, and the channels of a part
  const int64_t per_row_;         ///< elements of a tile that share a row of `depth` values
  const int64_t rows_per_tile_;   ///< of transformed inputs
  const int64_t tiles_per_block_, blocks_;
  /// Of the elements of a tile; dividing for each tile would cost as much as its sums.
  std::array<int64_t, kElements> offsets_{};
};

}  // namespace

bool fits_winograd(const Conv2dProblem& problem) {
  constexpr int64_t kFewest = 16, kMost = 16384;  // channels of a group: a vector in every part of the depth
  const auto fits = [](int64_t channels) { return channels >= kFewest && channels <= kMost; };
  return problem.kernel_size.h == 3 && problem.kernel_size.w == 3 &&
         problem.stride.h * problem.stride.w == 1 && fits(problem.group_in()) && fits(problem.group_out());
}

bool winograd_saves_time(const Conv2dProblem& problem) {
  // Multiplications per pair of channels, and what the transforms of a pair's weights take in that unit.
  constexpr int64_t kTransforms = 1024;
  const int64_t tiles = problem.n * Tiles::along(problem.out.h, problem.dilation.h) *
                        Tiles::along(problem.out.w, problem.dilation.w);
  return kElements * tiles + kTransforms < 8 * problem.n * problem.out.h * problem.out.w;
}

void winograd_forward(const Conv2dProblem& problem, const void* x, const float* w, void* y) {
  dispatch_images(problem, [&]<class S>() {
    WinogradProduct<S>({x, problem.in, problem.out, problem.padding, problem.dilation, problem.n,
                        problem.groups, problem.group_in(), problem.group_out(), problem.relu_x,
                        /*mask=*/nullptr, y})
        .write(w, /*forward=*/true);
  });
}

void winograd_backward_input(const Conv2dProblem& problem, const void* dy, const float* w, const void* x,
                             void* dx) {
  const Pair2 padding{2 * problem.dilation.h - problem.padding.h, 2 * problem.dilation.w - problem.padding.w};
  dispatch_images(problem, [&]<class S>() {
    WinogradProduct<S>({dy, problem.out, problem.in, padding, problem.dilation, problem.n, problem.groups,
                        problem.group_out(), problem.group_in(), /*relu=*/false, problem.relu_x ? x : nullptr,
                        dx})
        .write(w, /*forward=*/false);
  });
}

}  // namespace palimpsest::kernels::cpu::conv2d
