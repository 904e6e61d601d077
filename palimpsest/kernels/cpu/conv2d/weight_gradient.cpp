#include "palimpsest/kernels/cpu/conv2d/weight_gradient.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/conv2d/image_type.h"
#include "palimpsest/kernels/cpu/conv2d/matrix_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/range.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/prefetch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>

namespace palimpsest::kernels::cpu::conv2d {
namespace {

// Most pixels per product. A task divides its pixels into equal chunks: a short one at the end would read and
// write all sums once more for little work.
constexpr int64_t kMostPixels = 256;
// Pixels of dy, and of x, that are packed together: all their channels in turn, while they stay in the first-level cache.
// Packing a channel of dy touches one line per pixel; all of these lines may lie in one set of the cache, which has 8 ways.
constexpr int64_t kRowsAtOnce = 8, kColumnsAtOnce = 32;
// Tiles read dy where it lies only if a pixel of it has no more bytes than this: larger pixels lie in too few sets of
// the caches. (16, 64, 56, 56) to 256 channels on a Zen 4: 9.7 -> 9.1 ms.
constexpr int64_t kMostPixelBytes = 2048;
// Tiles of rows and of columns that a task packs, each once for all tiles of the other side: 256 KiB each, so
// that they stay in the second-level cache. A task packs all columns if there are so few rows that both take
// at most 640 KiB.
constexpr int64_t kRowTiles = 32;
constexpr int64_t kColumnTiles = 8;
constexpr int64_t kPackedBytes = int64_t{640} << 10;
// Tasks, if there are enough pixels and columns: so many occupy many cores, and end at about the same time on
// few cores.
constexpr int64_t kTasks = 32;
constexpr int64_t kFewestPixels = 384;               // per task
constexpr int64_t kFewestColumnTiles = 4;            // per task, unless there are fewer
constexpr int64_t kPartialBytes = int64_t{8} << 20;  // the sums of all segments

struct PartialSums;
struct PackedRows;
struct PackedColumns;

/// dw as a matrix: rows are the output channels of all groups; columns are the (ky, kx, i) of a group, in
/// tiles that end at the last i of each (ky, kx). The values of x and dy lie in S.
template <class S>
class WeightGradient {
 public:
  WeightGradient(const Conv2dProblem& problem, const void* x, const void* dy)
      : problem_(problem),
        kernels_(current_instruction_set().matrix),
        images_(kernels_.images<S>()),
        x_(static_cast<const S*>(x)),
        dy_(static_cast<const S*>(dy)),
        tiles_each_(ceil_divide(problem_.group_in(), kernels_.columns)),
        column_tiles_(problem_.kernel_size.h * problem_.kernel_size.w * tiles_each_),
        row_blocks_(ceil_divide(problem_.group_out(), kRowTiles * kernels_.rows)),
        column_blocks_(packed_bytes() <= kPackedBytes ? 1 : ceil_divide(column_tiles_, kColumnTiles)),
        same_pixels_(problem_.stride.h * problem_.stride.w == 1 && problem_.in.h == problem_.out.h &&
                     problem_.in.w == problem_.out.w),
        pointwise_(same_pixels_ && problem_.kernel_size.h * problem_.kernel_size.w == 1 &&
                   problem_.padding.h == 0 && problem_.padding.w == 0) {
    const int64_t room = kPartialBytes / static_cast<int64_t>(sizeof(float)) / problem_.weights();
    const auto blocks = [&] { return problem_.groups * row_blocks_ * column_blocks_; };
    segments_ =
        std::max<int64_t>(1, std::min({ceil_divide(kTasks, blocks()), pixels() / kFewestPixels, room}));
    if (const int64_t tasks = segments_ * blocks(); tasks < kTasks)
      column_blocks_ = std::clamp(column_blocks_ * kTasks / tasks, column_blocks_,
                                  std::max(column_blocks_, column_tiles_ / kFewestColumnTiles));
  }

  void write(float* dw) const {
    const int64_t blocks = problem_.groups * row_blocks_ * column_blocks_, size = problem_.weights();
    float* const sums = segments_ == 1 ? dw : scratch<PartialSums>(segments_ * size);
    const int64_t tasks = segments_ * blocks, threads = max_threads();
    const auto task = [&](int64_t i) {
      const int64_t segment = i / blocks, column_block = i % column_blocks_,
                    row = i % blocks / column_blocks_;
      return Task{part(pixels(), segment, segments_), row / row_blocks_,
                  part(problem_.group_out(), row % row_blocks_, row_blocks_),
                  part(column_tiles_, column_block, column_blocks_), sums + segment * size};
    };
    parallel_tasks(tasks, [&](int64_t i) { run(task(i), i + threads < tasks ? task(i + threads) : Task{}); });
    if (segments_ == 1) return;
    parallel_ranges(size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dw[i] = sums[i];
      for (int64_t segment = 1; segment < segments_; ++segment)
        for (int64_t i = begin; i < end; ++i) dw[i] += sums[segment * size + i];
    });
  }

 private:
  static constexpr int64_t kSize = sizeof(S);

  /// The product of some rows and tiles of columns of one group, summed over some pixels.
  struct Task {
    Range pixels{0, 0};
    int64_t group = 0;
    Range rows{0, 0}, tiles{0, 0};
    float* dw = nullptr;

    int64_t chunks() const { return ceil_divide(pixels.size(), kMostPixels); }
    Range chunk(int64_t i) const {
      const Range some = part(pixels.size(), i, chunks());
      return {pixels.begin + some.begin, pixels.begin + some.end};
    }
  };

  int64_t pixels() const { return problem_.n * problem_.out.h * problem_.out.w; }

  /// Returns the size of all rows and columns of a group at kMostPixels pixels.
  int64_t packed_bytes() const {
    return (problem_.group_out() + column_tiles_ * kernels_.columns) * kMostPixels *
           static_cast<int64_t>(sizeof(float));
  }

  /// Whether tiles of these rows read dy where it lies. A tile always reads kernels_.rows rows, so that one with fewer
  /// would read beyond dy.
  bool reads_in_place(Range rows) const {
    return kSize == sizeof(float) && problem_.c_out * kSize <= kMostPixelBytes &&
           rows.size() % kernels_.rows == 0;
  }

  /// Runs a task. after: the one that this thread probably runs next, or an empty one.
  void run(const Task& task, const Task& after) const {
    const auto [all_pixels, group, rows, tiles, dw] = task;
    const int64_t row_tiles = ceil_divide(rows.size(), kernels_.rows);
    const int64_t chunks = task.chunks(), most = ceil_divide(all_pixels.size(), chunks);
    const int64_t a_step = kernels_.packed_rows, tiles_per_step = a_step / kernels_.rows;
    const int64_t a_size = a_step * most,
                  b_size = kernels_.columns * most;  // of rows and of columns packed together
    const bool in_place = reads_in_place(rows);
    float* const a =
        in_place ? nullptr : scratch<PackedRows>(ceil_divide(row_tiles, tiles_per_step) * a_size);
    float* const b = scratch<PackedColumns>(tiles.size() * b_size);
    const int64_t row_size = problem_.kernel_size.h * problem_.kernel_size.w * problem_.group_in();
    const int64_t first_row = row_of(task);
    const auto height = [&](int64_t r) { return std::min(kernels_.rows, rows.size() - r * kernels_.rows); };
    for (int64_t i = 0; i < chunks; ++i) {
      const Range pixels = task.chunk(i);
      const int64_t p = pixels.begin;
      for (int64_t q = p; !in_place && q < pixels.end; q += kRowsAtOnce)
        for (int64_t row = 0; row < rows.size(); row += a_step)
          images_.pack_rows(std::min(kRowsAtOnce, pixels.end - q), dy_ + q * problem_.c_out + first_row + row,
                            problem_.c_out, std::min(a_step, rows.size() - row),
                            a + row * most + (q - p) * a_step);
      for (int64_t q = p; q < pixels.end; q += kColumnsAtOnce)
        for (int64_t t = tiles.begin; t < tiles.end; ++t) {
          const Column c = column(t);
          pack_columns({q, std::min(q + kColumnsAtOnce, pixels.end)}, c.position,
                       group * problem_.group_in() + c.first, c.width,
                       b + (t - tiles.begin) * b_size + (q - p) * kernels_.columns);
        }
      // So that the next chunk, or the next task, need not wait for memory: even products prefetch its rows of dy, the
      // others those of x, if an output's pixel is the input's.
      const int64_t products = tiles.size() * row_tiles, odd = same_pixels_ ? products / 2 : 0;
      Prefetch next_dy, next_x;
      const bool is_last = i + 1 == chunks;
      if (const Task& of_next = is_last ? after : task; of_next.pixels.size() > 0) {
        const Range next = of_next.chunk(is_last ? 0 : i + 1), channels = channels_of(of_next);
        next_dy = Prefetch::of_rows(dy_ + next.begin * problem_.c_out + row_of(of_next), next.size(),
                                    of_next.rows.size() * kSize, problem_.c_out * kSize, products - odd,
                                    pixels.size());
        if (odd > 0)
          next_x = Prefetch::of_rows(x_ + next.begin * problem_.c_in + channels.begin, next.size(),
                                     channels.size() * kSize, problem_.c_in * kSize, odd, pixels.size());
      }
      bool of_x = false;
      for (int64_t t = tiles.begin; t < tiles.end; ++t) {
        const Column c = column(t);
        for (int64_t r = 0; r < row_tiles; ++r) {
          float* const to =
              dw + (first_row + r * kernels_.rows) * row_size + c.position * problem_.group_in() + c.first;
          const float* const from =
              in_place ? row_in_image(p, first_row + r * kernels_.rows)
                       : a + r / tiles_per_step * a_size + r % tiles_per_step * kernels_.rows;
          kernels_.tile(pixels.size(), from, in_place ? problem_.c_out : a_step,
                        b + (t - tiles.begin) * b_size, kernels_.columns,
                        {to, row_size, height(r), c.width, i > 0}, (of_x ? next_x : next_dy).next(b));
          of_x = !of_x && odd > 0;
        }
      }
    }
  }

  /// A tile of columns: channels [first, first + width) of a group at a position of the window.
  struct Column {
    int64_t position, first, width;
  };
  Column column(int64_t tile) const {
    const int64_t first = tile % tiles_each_ * kernels_.columns;
    return {tile / tiles_each_, first, std::min(kernels_.columns, problem_.group_in() - first)};
  }

  /// Returns the first output channel of a task.
  int64_t row_of(const Task& task) const { return task.group * problem_.group_out() + task.rows.begin; }

  /// Returns the input channels of a task; those of the whole group if its tiles lie at several positions of the
  /// window.
  Range channels_of(const Task& task) const {
    const Column first = column(task.tiles.begin), last = column(task.tiles.end - 1);
    const int64_t channel = task.group * problem_.group_in();
    return first.position == last.position ? Range{channel + first.first, channel + last.first + last.width}
                                           : Range{channel, channel + problem_.group_in()};
  }

  /// Returns where an f32 image has an output channel of a pixel.
  const float* row_in_image(int64_t pixel, int64_t row) const {
    return reinterpret_cast<const float*>(dy_ + pixel * problem_.c_out + row);
  }

  /// Packs the input that position (ky, kx) of the window meets at these outputs: channels [channel, channel
  /// + width), zero outside of the image.
  void pack_columns(Range pixels, int64_t position, int64_t channel, int64_t width, float* to) const {
    if (pointwise_) {
      images_.pack_columns(pixels.size(), x_ + pixels.begin * problem_.c_in + channel, problem_.c_in, width,
                           problem_.relu_x, to);
      return;
    }
    const int64_t shift_h = position / problem_.kernel_size.w * problem_.dilation.h - problem_.padding.h;
    const int64_t shift_w = position % problem_.kernel_size.w * problem_.dilation.w - problem_.padding.w;
    // Outputs whose pixel lies in the image: 0 <= ow * stride + shift_w < in.w.
    const int64_t low = shift_w < 0 ? ceil_divide(-shift_w, problem_.stride.w) : 0;
    const int64_t high = shift_w < problem_.in.w ? (problem_.in.w - 1 - shift_w) / problem_.stride.w + 1 : 0;
    const auto zeros = [&](int64_t count) { std::fill_n(to, count * kernels_.columns, 0.0F); };
    for (int64_t p = pixels.begin; p < pixels.end;) {
      const int64_t row = p / problem_.out.w, ow = p % problem_.out.w,
                    run = std::min(problem_.out.w - ow, pixels.end - p);
      const int64_t ih = row % problem_.out.h * problem_.stride.h + shift_h;
      const bool inside = ih >= 0 && ih < problem_.in.h;
      const int64_t begin = inside ? std::clamp(low, ow, ow + run) : ow + run;
      const int64_t end = inside ? std::clamp(high, begin, ow + run) : ow + run;
      zeros(begin - ow);
      to += (begin - ow) * kernels_.columns;
      if (end > begin) {
        const int64_t pixel =
            (row / problem_.out.h * problem_.in.h + ih) * problem_.in.w + begin * problem_.stride.w + shift_w;
        images_.pack_columns(end - begin, x_ + pixel * problem_.c_in + channel,
                             problem_.stride.w * problem_.c_in, width, problem_.relu_x, to);
        to += (end - begin) * kernels_.columns;
      }
      zeros(ow + run - end);
      to += (ow + run - end) * kernels_.columns;
      p += run;
    }
  }

  const Conv2dProblem& problem_;
  const MatrixKernels& kernels_;
  const ImageAccess<S>& images_;
  const S* const x_;
  const S* const dy_;
  const int64_t tiles_each_, column_tiles_, row_blocks_;
  int64_t column_blocks_, segments_;
  const bool same_pixels_, pointwise_;  ///< pointwise_: an output reads no more than its own pixel
};

}  // namespace

bool fits_weight_gradient(const Conv2dProblem& problem) {
  return problem.group_in() >= 32 && problem.group_out() >= 16;
}

void weight_gradient(const Conv2dProblem& problem, const void* x, const void* dy, float* dw) {
  dispatch_images(problem, [&]<class S>() { WeightGradient<S>(problem, x, dy).write(dw); });
}

}  // namespace palimpsest::kernels::cpu::conv2d
