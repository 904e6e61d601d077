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

namespace palimpsest::kernels::cpu::conv2d {
namespace {

struct TransformedInput;
struct TransformedGradient;
struct WeightSums;

/// dw from sums over the tiles of products of transformed dy and x, whose values lie in S.
template <class S>
class WinogradWeightGradient {
 public:
  WinogradWeightGradient(const Conv2dProblem& problem, const void* x, const void* dy)
      : problem_(problem),
        kernels_(current_instruction_set().winograd),
        transforms_(kernels_.images<S>()),
        matrix_(current_instruction_set().matrix),
        x_(x, problem.in, problem.c_in),
        dy_(dy, problem.out, problem.c_out),
        tiles_(problem.n, problem.out, problem.dilation),
        columns_(round_up(problem.group_in(), matrix_.lanes)),
        segments_(std::clamp<int64_t>(std::min(tiles_.count() / kFewestTilesPerTask,
                                               kWeightFloats / (kElements * columns_ * problem.c_out)),
                                      1, kWinogradTasks / 4)),
        strips_(std::max<int64_t>(1, problem.group_out() / least_outputs())),
        strip_(ceil_divide(problem.group_out(), strips_)),
        rows_(round_up(strip_, matrix_.rows)),
        strips_at_once_(strips_ > 1 ? 1
                                    : std::clamp<int64_t>(kChannelsAtOnce / std::max(columns_, rows_), 1,
                                                          problem.groups)) {}

  void write(float* dw) const {
    const int64_t all = problem_.groups * strips_, size = kElements * element();
    const int64_t at_once =
        std::max(strips_at_once_, round_down(kWeightFloats / (segments_ * size), strips_at_once_));
    for (int64_t begin = 0; begin < all; begin += at_once) {
      const Range strips{begin, std::min(begin + at_once, all)};
      float* const sums = scratch<WeightSums>(segments_ * strips.size() * size);
      const int64_t units = ceil_divide(strips.size(), strips_at_once_);
      parallel_tasks(segments_ * units * 4, [&](int64_t i) {
        const int64_t segment = i / (4 * units), unit = i / 4 % units * strips_at_once_, r = i % 4;
        multiply(part(tiles_.count(), segment, segments_), r,
                 {begin + unit, std::min(begin + unit + strips_at_once_, strips.end)},
                 sums + (segment * strips.size() + unit) * size);
      });
      parallel_ranges(strips.size() * strip_, [&](int64_t first, int64_t last) {
        for (int64_t k = first; k < last; ++k)
          transform_sums(sums + k / strip_ * size, segments_, strips.size() * size, begin + k / strip_,
                         k % strip_, dw);
      });
    }
  }

 private:
  static constexpr int64_t kFewestTiles = 32, kMostTiles = 128;  // that are transformed together
  static constexpr int64_t kBlockFloats = int64_t{1} << 17;      // of their transformed inputs
  static constexpr int64_t kSumFloats = int64_t{1} << 17;        // that a task adds to
  static constexpr int64_t kFewestOutputs = 64;                  // per task
  static constexpr int64_t kFewestTilesPerTask = 256;
  static constexpr int64_t kChannelsAtOnce = 256;
  // Between rows of transformed values: rows at a distance of a power of two would evict one another.
  static constexpr int64_t kGap = 16;

  /// Returns the least output channels of a strip, whose sums stay in the second-level cache.
  int64_t least_outputs() const {
    const int64_t fit = kSumFloats / (4 * columns_);
    const int64_t strips =
        ceil_divide(kWinogradTasks, 4 * segments_ * problem_.groups);  // so many make enough tasks
    const int64_t enough = std::max(kFewestOutputs, problem_.group_out() / strips);
    return std::max<int64_t>(16, round_down(std::min(fit, enough), 16));
  }
  /// Returns the channels of a strip, of all groups.
  Range outputs_of(int64_t strip) const {
    const int64_t first = strip / strips_ * problem_.group_out();
    const Range some = part(problem_.group_out(), strip % strips_, strips_);
    return {first + some.begin, first + some.end};
  }
  /// Returns the floats of one element of the sums of a strip: (rows_, columns_).
  int64_t element() const { return rows_ * columns_; }

  /// Writes dw of output `o` of a strip. sums: of the strip, in the first segment.
  void transform_sums(float* sums, int64_t segments, int64_t distance, int64_t strip, int64_t o,
                      float* dw) const {
    const Range outputs = outputs_of(strip);
    if (o >= outputs.size()) return;
    for (int64_t p = 0; p < kElements; ++p) {
      float* const total = sums + p * element() + o * columns_;
      for (int64_t segment = 1; segment < segments; ++segment)
        for (int64_t k = 0; k < problem_.group_in(); ++k) total[k] += total[segment * distance + k];
    }
    kernels_.weight_gradient(sums + o * columns_, element(), problem_.group_in(),
                             dw + (outputs.begin + o) * 9 * problem_.group_in(), problem_.group_in());
  }

  /// Row r of the sums, for some tiles and strips.
  void multiply(Range all_tiles, int64_t r, Range strips, float* sums) const {
    const Range groups{strips.begin / strips_, (strips.end - 1) / strips_ + 1};
    const Range inputs{groups.begin * problem_.group_in(), groups.end * problem_.group_in()};
    const Range outputs{outputs_of(strips.begin).begin, outputs_of(strips.end - 1).end};
    const int64_t most = std::clamp<int64_t>(kBlockFloats / (4 * inputs.size()), kFewestTiles, kMostTiles);
    const int64_t blocks = ceil_divide(all_tiles.size(), most);
    const int64_t x_step = round_up(inputs.size(), kGap) + kGap,
                  dy_step = round_up(outputs.size(), kGap) + kGap;
    float* const x = scratch<TransformedInput>(4 * most * x_step + matrix_.columns);
    float* const dy = scratch<TransformedGradient>(4 * most * dy_step + rows_);
    for (int64_t block = 0; block < blocks; ++block) {
      const Range tiles = part(all_tiles.size(), block, blocks);
      for (int64_t t = 0; t < tiles.size(); ++t) {
        const Tiles::Tile tile = tiles_.tile(all_tiles.begin + tiles.begin + t);
        TileRow to_x{{}, inputs.size(), 0}, to_dy{{}, outputs.size(), 0};
        for (int64_t q = 0; q < 4; ++q) {
          to_x.to[q] = x + (q * most + t) * x_step;
          to_dy.to[q] = dy + (q * most + t) * dy_step;
        }
        const Tiles::Tile first{tile.image, tile.h - problem_.padding.h, tile.w - problem_.padding.w};
        const S *first_row[4], *second_row[4];
        find_pixels(x_, first, problem_.dilation, kFirstRow[r], inputs.begin, first_row);
        find_pixels(x_, first, problem_.dilation, kSecondRow[r], inputs.begin, second_row);
        transforms_.input_row(r, first_row, second_row, inputs.size(), problem_.relu_x, to_x);
        const S* pixels[4];
        for (int64_t i = 0; i < 4; ++i)
          pixels[i] = dy_.pixel(tile.image, tile.h + i / 2 * problem_.dilation.h,
                                tile.w + i % 2 * problem_.dilation.w) +
                      outputs.begin;
        transforms_.gradient_row(r, pixels, outputs.size(), to_dy);
      }
      Prefetch next_x;
      if (block + 1 < blocks && inputs.size() == problem_.c_in) {
        const Range next = part(all_tiles.size(), block + 1, blocks);
        next_x = prefetch_input(x_, tiles_, {all_tiles.begin + next.begin, all_tiles.begin + next.end},
                                problem_.dilation, problem_.padding.h,
                                4 * strips.size() * tiles_per_element(), tiles.size());
      }
      for (int64_t strip = strips.begin; strip < strips.end; ++strip) {
        const int64_t group = strip / strips_ - groups.begin;
        float* const to = sums + ((strip - strips.begin) * kElements + 4 * r) * element();
        for (int64_t q = 0; q < 4; ++q)
          multiply_element(tiles.size(), dy + q * most * dy_step + outputs_of(strip).begin - outputs.begin,
                           dy_step, x + q * most * x_step + group * problem_.group_in(), x_step, block > 0,
                           to + q * element(), next_x);
      }
    }
  }

  /// Returns the tiles of multiply_element's product.
  int64_t tiles_per_element() const {
    return ceil_divide(columns_, matrix_.columns) * (rows_ / matrix_.rows);
  }

  void multiply_element(int64_t tiles, const float* dy, int64_t dy_step, const float* x, int64_t x_step,
                        bool add, float* sums, Prefetch& next_x) const {
    for (int64_t column = 0; column < columns_; column += matrix_.columns)
      for (int64_t row = 0; row < rows_; row += matrix_.rows)
        matrix_.tile(tiles, dy + row, dy_step, x + column, x_step,
                     {sums + row * columns_ + column, columns_, matrix_.rows,
                      std::min(matrix_.columns, columns_ - column), add},
                     next_x.next(dy));
  }

  const Conv2dProblem& problem_;
  const WinogradKernels& kernels_;
  const WinogradTransforms<S>& transforms_;
  const MatrixKernels& matrix_;
  const Images<S> x_, dy_;
  const Tiles tiles_;
  const int64_t columns_;         ///< the input channels of a group, in whole vectors
  const int64_t segments_;        ///< of the tiles; their sums are added at the end
  const int64_t strips_;          ///< of a group: output channels whose sums one task adds to
  const int64_t strip_;           ///< the most channels of a strip
  const int64_t rows_;            ///< those, in whole tiles
  const int64_t strips_at_once_;  ///< narrow groups that are transformed together
};

}  // namespace

void winograd_backward_weight(const Conv2dProblem& problem, const void* x, const void* dy, float* dw) {
  dispatch_images(problem, [&]<class S>() { WinogradWeightGradient<S>(problem, x, dy).write(dw); });
}

}  // namespace palimpsest::kernels::cpu::conv2d
