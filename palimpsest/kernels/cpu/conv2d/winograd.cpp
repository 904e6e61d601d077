#include "palimpsest/kernels/cpu/conv2d/winograd.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/conv2d/matrix_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/range.h"
#include "palimpsest/kernels/cpu/conv2d/winograd_kernels.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>
#include <array>
#include <vector>

namespace palimpsest::kernels::cpu::conv2d {
namespace {

constexpr int64_t kElements = 16;  // of a transformed tile
constexpr int64_t kTasks = 32;     // so many occupy many cores, and end at about the same time on few
// Transformed weights, or sums of the weight gradient, that exist at one time.
constexpr int64_t kWeightFloats = int64_t{2} << 20;

struct TransformedWeights;
struct TransformedRows;
struct TransformedInput;
struct TransformedGradient;
struct Products;
struct WeightSums;

int64_t round_down(int64_t value, int64_t unit) {
  return value / unit * unit;
}

/// The images of one tensor. Pixels outside of an image read as zeros.
class Images {
 public:
  Images(const float* values, Pair2 size, int64_t channels)
      : values_(values), size_(size), channels_(channels), zeros_(static_cast<std::size_t>(channels)) {}

  /// Returns the offset of a pixel's first channel; -1 if it lies outside.
  int64_t offset(int64_t image, int64_t h, int64_t w) const {
    if (h < 0 || h >= size_.h || w < 0 || w >= size_.w) return -1;
    return ((image * size_.h + h) * size_.w + w) * channels_;
  }
  const float* pixel(int64_t image, int64_t h, int64_t w) const {
    const int64_t at = offset(image, h, w);
    return at < 0 ? zeros_.data() : values_ + at;
  }

 private:
  const float* const values_;
  const Pair2 size_;
  const int64_t channels_;
  const std::vector<float> zeros_;
};

/// The tiles of an output: 2x2 pixels each, `dilation` apart.
class Tiles {
 public:
  Tiles(int64_t images, Pair2 out, Pair2 dilation)
      : images_(images), rows_(origins(out.h, dilation.h)), columns_(origins(out.w, dilation.w)) {}

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
    for (int64_t first = 0; first < std::min(size, dilation); ++first)
      for (int64_t i = first; i < size; i += 2 * dilation) result.push_back(i);
    return result;
  }
  int64_t per_image() const { return static_cast<int64_t>(rows_.size() * columns_.size()); }

  const int64_t images_;
  const std::vector<int64_t> rows_, columns_;
};

/// Writes row r of the transformed inputs of a tile whose first input pixel is (h, w).
void transform_input(const WinogradKernels& kernels, const Images& images, Tiles::Tile input, Pair2 dilation,
                     int64_t r, int64_t channels, bool relu, const TileRow& row) {
  constexpr int64_t kFirst[4] = {0, 1, 2, 1}, kSecond[4] = {2, 2, 1, 3};
  const float *first[4], *second[4];
  for (int64_t j = 0; j < 4; ++j) {
    const int64_t w = input.w + j * dilation.w;
    first[j] = images.pixel(input.image, input.h + kFirst[r] * dilation.h, w);
    second[j] = images.pixel(input.image, input.h + kSecond[r] * dilation.h, w);
  }
  kernels.input_row(r, first, second, channels, relu, row);
}

/// A convolution of stride 1: of x with w, or of dy with w turned by 180 degrees.
class WinogradProduct {
 public:
  struct Arguments {
    const float* from;
    Pair2 in, out, padding, dilation;
    int64_t images, depth, width;  ///< depth: the channels of `from`; width: those of `to`
    bool relu;                     ///< reads max(from, 0)
    const float* mask;             ///< null, or of the size of `to`, which becomes 0 where mask <= 0
    float* to;
  };

  explicit WinogradProduct(const Arguments& arguments)
      : arguments_(arguments),
        kernels_(current_instruction_set().winograd),
        matrix_(current_instruction_set().matrix),
        from_(arguments.from, arguments.in, arguments.depth),
        to_(arguments.to, arguments.out, arguments.width),
        tiles_(arguments.images, arguments.out, arguments.dilation),
        column_tiles_(ceil_divide(arguments.width, matrix_.columns)),
        chunks_(ceil_divide(arguments.depth, matrix_.depth)),
        per_row_(std::clamp<int64_t>(matrix_.depth / arguments.depth, 1, kElements)),
        rows_per_tile_(ceil_divide(kElements, per_row_) * chunks_),
        tiles_per_block_(matrix_.rows *
                         std::clamp(kMostRows / rows_per_tile_ / matrix_.rows, kFewestRowTiles, kMostRowTiles)),
        blocks_(ceil_divide(tiles_.count(), tiles_per_block_)) {}

  /// forward: w is (width, 3, 3, depth); else (depth, 3, 3, width), and is turned.
  void write(const float* w, bool forward) const {
    const int64_t at_once =
        std::max<int64_t>(1, kWeightFloats / (kElements * arguments_.depth * matrix_.columns));
    for (int64_t begin = 0; begin < column_tiles_; begin += at_once) {
      const Range tiles{begin, std::min(begin + at_once, column_tiles_)};
      float* const weights = scratch<TransformedWeights>(tiles.size() * weights_per_tile());
      transform_weights(w, forward, tiles, weights);
      const int64_t row_tasks = std::min(blocks_, kTasks);
      const int64_t column_tasks =
          std::clamp<int64_t>(ceil_divide(kTasks, row_tasks), 1,
                              std::max<int64_t>(1, tiles.size() / kFewestColumnTiles));
      parallel_tasks(row_tasks * column_tasks, [&](int64_t i) {
        const Range some = part(tiles.size(), i % column_tasks, column_tasks);
        multiply(part(blocks_, i / column_tasks, row_tasks), {tiles.begin + some.begin, tiles.begin + some.end},
                 weights + some.begin * weights_per_tile());
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

  /// Fills panels of (element, depth, columns) per tile of columns.
  void transform_weights(const float* w, bool forward, Range tiles, float* to) const {
    constexpr int64_t kInputs = 64;  // transformed together: 128 KiB
    const int64_t depth = arguments_.depth, width = arguments_.width, columns = matrix_.columns;
    const int64_t parts = ceil_divide(depth, kInputs);
    parallel_tasks(tiles.size() * parts, [&](int64_t task) {
      const int64_t tile = task / parts, first = (tiles.begin + tile) * columns,
                    some = std::min(columns, width - first);
      const Range k{task % parts * kInputs, std::min(task % parts * kInputs + kInputs, depth)};
      float* const panel = to + tile * weights_per_tile() + k.begin * columns;
      if (!forward) {
        for (int64_t o = k.begin; o < k.end; ++o)
          kernels_.weights(w + o * 9 * width + first, width, some, /*rotate=*/true,
                           panel + (o - k.begin) * columns, depth * columns);
        return;
      }
      float* const rows = scratch<TransformedRows>(kElements * columns * kInputs);
      for (int64_t o = 0; o < some; ++o)
        kernels_.weights(w + (first + o) * 9 * depth + k.begin, depth, k.size(), /*rotate=*/false,
                         rows + o * kInputs, columns * kInputs);
      for (int64_t p = 0; p < kElements; ++p)
        matrix_.pack_transposed(k.size(), rows + p * columns * kInputs, kInputs, some, panel + p * depth * columns);
    });
  }

  /// Returns where row `t` of element p and chunk `chunk` lies among the transformed inputs.
  int64_t row_offset(int64_t p, int64_t chunk, int64_t t) const {
    const int64_t row = chunk * (rows_per_tile_ / chunks_) + p / per_row_;
    return (row * tiles_per_block_ + t) * matrix_.depth + p % per_row_ * arguments_.depth;
  }

  void multiply(Range blocks, Range column_tiles, const float* weights) const {
    float* const input = scratch<TransformedInput>(rows_per_tile_ * tiles_per_block_ * matrix_.depth);
    float* const products = scratch<Products>(kElements * tiles_per_block_ * matrix_.columns);
    const int64_t step = tiles_per_block_ * matrix_.columns;  // of products
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const Range tiles = part(tiles_.count(), block, blocks_);
      for (int64_t t = 0; t < tiles.size(); ++t) transform(tiles_.tile(tiles.begin + t), t, input);
      for (int64_t column = column_tiles.begin; column < column_tiles.end; ++column) {
        const float* const panels = weights + (column - column_tiles.begin) * weights_per_tile();
        const int64_t first = column * matrix_.columns,
                      columns = std::min(matrix_.columns, arguments_.width - first);
        for (int64_t p = 0; p < kElements; ++p)
          multiply_element(p, tiles.size(), columns, input, panels, products + p * step);
        for (int64_t t = 0; t < tiles.size(); ++t)
          write_tile(tiles_.tile(tiles.begin + t), products + t * matrix_.columns, step, first, columns);
      }
    }
  }

  void multiply_element(int64_t p, int64_t tiles, int64_t columns, const float* input, const float* panels,
                        float* to) const {
    const int64_t row_tiles = ceil_divide(tiles, matrix_.rows);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const Range depth{chunk * matrix_.depth, std::min((chunk + 1) * matrix_.depth, arguments_.depth)};
      const float* const panel = panels + (p * arguments_.depth + depth.begin) * matrix_.columns;
      // The next panel, one cache line per step, in as many calls as it takes.
      const int64_t lines = depth.size() * matrix_.columns / 16;
      for (int64_t r = 0; r < row_tiles; ++r) {
        const int64_t row = r * matrix_.rows, ahead = r * depth.size();
        matrix_.tile_of_rows(depth.size(), input + row_offset(p, chunk, row), panel,
                             {to + row * matrix_.columns, matrix_.columns, std::min(matrix_.rows, tiles - row),
                              columns, chunk > 0},
                             ahead < lines ? ReadAhead{panel + (lines + ahead) * 16, 16} : ReadAhead{panel, 0});
      }
    }
  }

  void transform(Tiles::Tile tile, int64_t t, float* to) const {
    const Tiles::Tile input{tile.image, tile.h - arguments_.padding.h, tile.w - arguments_.padding.w};
    for (int64_t r = 0; r < 4; ++r) {
      TileRow row{{}, matrix_.depth, rows_per_tile_ / chunks_ * tiles_per_block_ * matrix_.depth};
      for (int64_t q = 0; q < 4; ++q) row.to[q] = to + row_offset(4 * r + q, 0, t);
      transform_input(kernels_, from_, input, arguments_.dilation, r, arguments_.depth, arguments_.relu, row);
    }
  }

  void write_tile(Tiles::Tile tile, const float* m, int64_t step, int64_t first, int64_t columns) const {
    float* y[4];
    const float* mask[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t at = to_.offset(tile.image, tile.h + i / 2 * arguments_.dilation.h,
                                    tile.w + i % 2 * arguments_.dilation.w);
      y[i] = at < 0 ? nullptr : arguments_.to + at + first;
      mask[i] = at < 0 || !arguments_.mask ? nullptr : arguments_.mask + at + first;
    }
    kernels_.output(m, step, columns, y, arguments_.mask ? mask : nullptr);
  }

  const Arguments arguments_;
  const WinogradKernels& kernels_;
  const MatrixKernels& matrix_;
  const Images from_, to_;
  const Tiles tiles_;
  const int64_t column_tiles_, chunks_;
  const int64_t per_row_;        ///< elements of a tile that share a row of `depth` values
  const int64_t rows_per_tile_;  ///< of transformed inputs
  const int64_t tiles_per_block_, blocks_;
};

/// dw from sums over the tiles of products of transformed dy and x.
class WinogradWeightGradient {
 public:
  WinogradWeightGradient(const Conv2dProblem& problem, const float* x, const float* dy)
      : problem_(problem),
        kernels_(current_instruction_set().winograd),
        matrix_(current_instruction_set().matrix),
        x_(x, problem.in, problem.c_in),
        dy_(dy, problem.out, problem.c_out),
        tiles_(problem.n, problem.out, problem.dilation),
        column_tiles_(ceil_divide(problem.c_in, matrix_.columns)),
        outputs_at_once_(std::clamp(round_down(kWeightFloats / (kElements * problem.c_in), kOutputs), kOutputs,
                                    problem.c_out)),
        segments_(std::clamp<int64_t>(
            std::min(tiles_.count() / kFewestTilesPerTask, kWeightFloats / (kElements * outputs_at_once_ * problem.c_in)),
            1, kTasks / 4)) {}

  void write(float* dw) const {
    for (int64_t begin = 0; begin < problem_.c_out; begin += outputs_at_once_)
      write({begin, std::min(begin + outputs_at_once_, problem_.c_out)}, dw + begin * 9 * problem_.c_in);
  }

 private:
  static constexpr int64_t kFewestTiles = 32, kMostTiles = 128;  // that are transformed together
  static constexpr int64_t kBlockFloats = int64_t{1} << 17;      // of their transformed inputs
  static constexpr int64_t kSumFloats = int64_t{1} << 17;        // that a task adds to
  static constexpr int64_t kFewestOutputs = 64;                  // per task
  static constexpr int64_t kFewestTilesPerTask = 256;
  static constexpr int64_t kOutputs = 16;       // a unit of output channels: they fill vectors

  void write(Range outputs, float* dw) const {
    const int64_t size = kElements * outputs.size() * problem_.c_in;
    float* const sums = scratch<WeightSums>(segments_ * size);
    const int64_t units_at_once = std::max<int64_t>(1, kSumFloats / (4 * problem_.c_in * kOutputs));
    const int64_t splits = std::clamp<int64_t>(ceil_divide(kTasks, 4 * segments_),
                                               ceil_divide(outputs.size() / kOutputs, units_at_once),
                                               std::max<int64_t>(1, outputs.size() / kFewestOutputs));
    parallel_tasks(4 * segments_ * splits, [&](int64_t i) {
      const int64_t segment = i / (4 * splits), r = i / splits % 4;
      const Range units = part(outputs.size() / kOutputs, i % splits, splits);
      const Range some{units.begin * kOutputs, units.end * kOutputs};
      multiply(part(tiles_.count(), segment, segments_), r, {outputs.begin + some.begin, outputs.begin + some.end},
               sums + segment * size + some.begin * problem_.c_in, outputs.size() * problem_.c_in);
    });
    parallel_ranges(outputs.size(), [&](int64_t begin, int64_t end) {
      const int64_t step = outputs.size() * problem_.c_in;
      for (int64_t p = 0; p < kElements; ++p)
        for (int64_t segment = 1; segment < segments_; ++segment) {
          const float* const from = sums + segment * size + p * step;
          for (int64_t k = begin * problem_.c_in; k < end * problem_.c_in; ++k) sums[p * step + k] += from[k];
        }
      for (int64_t o = begin; o < end; ++o)
        kernels_.weight_gradient(sums + o * problem_.c_in, step, problem_.c_in, dw + o * 9 * problem_.c_in,
                                 problem_.c_in);
    });
  }

  /// Row r of the sums, for some tiles and output channels. step: of elements in `sums`.
  void multiply(Range all_tiles, int64_t r, Range outputs, float* sums, int64_t step) const {
    const int64_t most = std::clamp<int64_t>(kBlockFloats / (4 * problem_.c_in), kFewestTiles, kMostTiles);
    const int64_t blocks = ceil_divide(all_tiles.size(), most);
    const int64_t panel = most * matrix_.columns, row_tiles = ceil_divide(outputs.size(), matrix_.rows);
    float* const x = scratch<TransformedInput>(4 * column_tiles_ * panel);
    float* const dy = scratch<TransformedGradient>(4 * most * outputs.size() + matrix_.rows);
    for (int64_t block = 0; block < blocks; ++block) {
      const Range tiles = part(all_tiles.size(), block, blocks);
      for (int64_t t = 0; t < tiles.size(); ++t) {
        const Tiles::Tile tile = tiles_.tile(all_tiles.begin + tiles.begin + t);
        TileRow to_x{{}, matrix_.columns, panel}, to_dy{{}, outputs.size(), 0};
        for (int64_t q = 0; q < 4; ++q) {
          to_x.to[q] = x + q * column_tiles_ * panel + t * matrix_.columns;
          to_dy.to[q] = dy + (q * most + t) * outputs.size();
        }
        transform_input(kernels_, x_, {tile.image, tile.h - problem_.padding.h, tile.w - problem_.padding.w},
                        problem_.dilation, r, problem_.c_in, problem_.relu_x, to_x);
        const float* pixels[4];
        for (int64_t i = 0; i < 4; ++i)
          pixels[i] = dy_.pixel(tile.image, tile.h + i / 2 * problem_.dilation.h,
                                tile.w + i % 2 * problem_.dilation.w) +
                      outputs.begin;
        kernels_.gradient_row(r, pixels, outputs.size(), to_dy);
      }
      for (int64_t q = 0; q < 4; ++q)
        for (int64_t column = 0; column < column_tiles_; ++column)
          for (int64_t o = 0; o < row_tiles; ++o) {
            const int64_t row = o * matrix_.rows, first = column * matrix_.columns;
            const float* const a = dy + q * most * outputs.size() + row;
            matrix_.tile(tiles.size(), a, outputs.size(), x + (q * column_tiles_ + column) * panel,
                         {sums + (4 * r + q) * step + row * problem_.c_in + first, problem_.c_in,
                          std::min(matrix_.rows, outputs.size() - row),
                          std::min(matrix_.columns, problem_.c_in - first), block > 0},
                         {a, 0});
          }
    }
  }

  const Conv2dProblem& problem_;
  const WinogradKernels& kernels_;
  const MatrixKernels& matrix_;
  const Images x_, dy_;
  const Tiles tiles_;
  const int64_t column_tiles_, outputs_at_once_, segments_;
};

}  // namespace

bool fits_winograd(const Conv2dProblem& problem) {
  return problem.groups == 1 && problem.kernel_size.h == 3 && problem.kernel_size.w == 3 &&
         problem.stride.h * problem.stride.w == 1 && problem.c_in % 16 == 0 && problem.c_out % 16 == 0;
}

bool winograd_saves_time(const Conv2dProblem& problem) {
  // Multiplications per pair of channels, and what the transforms of a pair's weights take in that unit.
  constexpr int64_t kTransforms = 1024;
  const int64_t tiles = Tiles(problem.n, problem.out, problem.dilation).count();
  return kElements * tiles + kTransforms < 8 * problem.n * problem.out.h * problem.out.w;
}

void winograd_forward(const Conv2dProblem& problem, const float* x, const float* w, float* y) {
  WinogradProduct({x, problem.in, problem.out, problem.padding, problem.dilation, problem.n, problem.c_in,
                   problem.c_out, problem.relu_x, /*mask=*/nullptr, y})
      .write(w, /*forward=*/true);
}

void winograd_backward_input(const Conv2dProblem& problem, const float* dy, const float* w, const float* x,
                             float* dx) {
  const Pair2 padding{2 * problem.dilation.h - problem.padding.h, 2 * problem.dilation.w - problem.padding.w};
  WinogradProduct({dy, problem.out, problem.in, padding, problem.dilation, problem.n, problem.c_out,
                   problem.c_in, /*relu=*/false, problem.relu_x ? x : nullptr, dx})
      .write(w, /*forward=*/false);
}

void winograd_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw) {
  WinogradWeightGradient(problem, x, dy).write(dw);
}

}  // namespace palimpsest::kernels::cpu::conv2d
