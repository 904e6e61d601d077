#include "palimpsest/kernels/dense_block.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/dense_block/kernels.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"
#include "palimpsest/kernels/formulas/abn_formulas.h"

#include <algorithm>
#include <optional>

namespace palimpsest::kernels::cpu {
namespace dense_block {
namespace {

// The size of z, which stays in the second-level cache beside the next pixels, the weights and their gradient.
constexpr int64_t kScratchBytes = int64_t{192} << 10;
constexpr int64_t kMostPixels = 256;
constexpr int64_t kFewestPixels = 16;
// Channels that a backward pass in channels-last takes at a time, about: so many columns of w and of dw fit
// beside z, and z holds so many pixels that adding to dw costs little.
constexpr int64_t kBlockChannels = 256;
// Tasks of a backward pass: so many occupy many cores, and end at about the same time on few cores. Each has a
// segment of the chunks, with its own sums, and a block of channels.
constexpr int64_t kTasks = 32;
constexpr int64_t kPartialBytes = int64_t{8} << 20;  // the sums of all segments
// Below this many products, waking threads costs more than the work.
constexpr int64_t kSerialProducts = int64_t{1} << 20;

struct ZScratch;
struct HScratch;
struct TransposedScratch;
struct WeightScratch;
struct VectorScratch;
struct SumScratch;
struct PartialScratch;
struct PartialSumScratch;

template <class T, class Purpose>
T* scratch_of(int64_t count) {
  constexpr int64_t kFloats = sizeof(T) / sizeof(float);
  return reinterpret_cast<T*>(scratch<Purpose>(count * kFloats));
}

bool is_serial(const DenseProductProblem& problem) {
  return problem.n * problem.s * problem.c * problem.out < kSerialProducts;
}

int64_t threads_of(const DenseProductProblem& problem) {
  return is_serial(problem) ? 1 : max_threads();
}

template <class Task>
void run(const DenseProductProblem& problem, int64_t count, const Task& task) {
  if (!is_serial(problem)) return parallel_tasks(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

template <class Body>
void in_ranges(const DenseProductProblem& problem, int64_t count, const Body& body) {
  if (!is_serial(problem)) return parallel_ranges(count, body);
  body(int64_t{0}, count);
}

/// The part of x that a thread probably reads next.
struct Next {
  int64_t chunk, block;
};

enum class Pass { kForward, kBackward };

/// The cut of one problem into chunks of pixels, in a backward pass also into blocks of channels, and the data
/// that all share.
template <class S>
class Call {
  using T = accumulate_t<S>;

 public:
  Call(Pass pass, const DenseProductProblem& problem, const DenseNormalization& norm)
      : problem_(problem),
        kernels_(current_instruction_set().dense<S>()),
        channels_last_(problem.layout == Layout::kChannelsLast),
        block_(problem.c) {
    if (channels_last_) {
      if (pass == Pass::kBackward) {
        const int64_t blocks = ceil_divide(problem_.c, kBlockChannels), columns = kernels_.columns;
        block_ = std::min(block_, ceil_divide(ceil_divide(problem_.c, blocks), columns) * columns);
      }
      const int64_t fit = kScratchBytes / (scratch_stride(block_) * static_cast<int64_t>(sizeof(T)));
      // A multiple of 8, the rows of a tile.
      chunk_pixels_ = std::clamp(fit / 8 * 8, kFewestPixels, kMostPixels);
      chunks_ = ceil_divide(problem_.n * problem_.s, chunk_pixels_);
    } else {
      const int64_t fit = kScratchBytes / (problem_.c * static_cast<int64_t>(sizeof(T)));
      const int64_t most = std::clamp(fit / kernels_.lanes * kernels_.lanes, kFewestPixels, kMostPixels);
      chunk_pixels_ = padded(ceil_divide(problem_.s, ceil_divide(problem_.s, most)));
      pieces_ = ceil_divide(problem_.s, chunk_pixels_);
      chunks_ = problem_.n * pieces_;
    }
    T* const vectors = scratch_of<T, VectorScratch>(4 * padded(problem_.c));
    const auto widened = [&](int64_t which, const double* from) {
      T* const to = vectors + which * padded(problem_.c);
      for (int64_t c = 0; c < padded(problem_.c); ++c)
        to[c] = c < problem_.c ? static_cast<T>(from[c]) : T(0);
      return to;
    };
    T* const shift = widened(2, norm.shift);
    coefficients_ = {widened(0, norm.mean), widened(1, norm.scale), shift};
    // The shift carries the part of the mean that does not fit into a T.
    for (int64_t c = 0; c < problem_.c; ++c)
      shift[c] = static_cast<T>(norm.shift[c] - low_part<T>(norm.mean[c]) * norm.scale[c]);
    per_dy_ = vectors + 3 * padded(problem_.c);
  }

  int64_t chunks() const { return chunks_; }
  int64_t blocks() const { return ceil_divide(problem_.c, block_); }
  int64_t padded(int64_t count) const { return ceil_divide(count, kernels_.lanes) * kernels_.lanes; }

  const T* packed_weight(const void* w, bool transposed) const {
    T* const to = scratch_of<T, WeightScratch>(transposed ? problem_.c * padded(problem_.out)
                                                          : problem_.out * padded(problem_.c));
    in_ranges(problem_, transposed ? problem_.c : problem_.out, [&](int64_t begin, int64_t end) {
      kernels_.pack_weight(problem_.out, problem_.c, static_cast<const S*>(w), transposed, to, begin, end);
    });
    return to;
  }

  void forward(int64_t i, const std::optional<Next>& next, const void* x, const T* w, void* h) const {
    Chunk<S> chunk;
    chunk.w_stride = padded(channels_last_ ? problem_.out : problem_.c);
    kernels_.forward(place(i, 0, next, chunk, x, w), static_cast<S*>(h) + h_offset(i));
  }

  void set_per_dy(const double* per_dy) const {
    for (int64_t c = 0; c < padded(problem_.c); ++c)
      per_dy_[c] = c < problem_.c ? static_cast<T>(per_dy[c]) : T(0);
  }

  /// Adds the part of a block of channels to dw (writes it unless `add`) and to sums, (2, c) doubles. Either may
  /// be null.
  void backward(int64_t i, int64_t block, const std::optional<Next>& next, bool add,
                const DenseProductBackward& tensors, const T* w, T* dw, double* sums) const {
    const int64_t first = block * block_;
    BackwardChunk<S> chunk;
    chunk.w_stride = padded(problem_.c);
    place(i, first, next, chunk, tensors.x, w + first);
    chunk.dh = static_cast<const S*>(tensors.dh) + h_offset(i);
    if (dw) chunk.dw = dw + first;
    chunk.add_dw = add;
    chunk.per_dy = per_dy_ + first;
    if (tensors.gradient) chunk.gradient = static_cast<T*>(tensors.gradient) + x_offset(i) + first;
    if (dw && !channels_last_)
      chunk.dh_transposed = scratch_of<T, TransposedScratch>(chunk_pixels_ * padded(problem_.out));
    if (sums) {
      chunk.sum_dy = scratch_of<T, SumScratch>(2 * padded(block_));
      chunk.sum_dy_x = chunk.sum_dy + padded(block_);
    }
    kernels_.backward(chunk);
    if (!sums) return;
    for (int64_t c = 0; c < chunk.c; ++c) {
      sums[first + c] += static_cast<double>(chunk.sum_dy[c]);
      sums[problem_.c + first + c] += static_cast<double>(chunk.sum_dy_x[c]);
    }
  }

  /// Adds the weight gradients of all segments, in their order.
  void add_segments(int64_t segments, const T* parts, T* dw) const {
    const int64_t c = problem_.c, width = channels_last_ ? padded(c) : padded(problem_.out);
    in_ranges(problem_, problem_.out, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        T* const to = dw + o * c;
        std::fill_n(to, c, T(0));
        for (int64_t segment = 0; segment < segments; ++segment) {
          const T* const part = parts + segment * dw_size();
          if (channels_last_) {
            for (int64_t j = 0; j < c; ++j) to[j] += part[o * width + j];
          } else {
            for (int64_t j = 0; j < c; ++j) to[j] += part[j * width + o];
          }
        }
      }
    });
  }

  /// Returns the size of the packed weight gradient.
  int64_t dw_size() const {
    return channels_last_ ? problem_.out * padded(problem_.c) : problem_.c * padded(problem_.out);
  }

 private:
  /// Returns an odd number of vectors: rows that lie a power of two apart would share the same sets of a
  /// cache.
  int64_t scratch_stride(int64_t width) const {
    const int64_t vectors = ceil_divide(width, kernels_.lanes);
    return (vectors + 1 - vectors % 2) * kernels_.lanes;
  }
  int64_t z_stride() const { return scratch_stride(channels_last_ ? block_ : chunk_pixels_); }
  int64_t z_size() const { return (channels_last_ ? chunk_pixels_ : problem_.c) * z_stride(); }

  int64_t first_pixel(int64_t i) const {
    return channels_last_ ? i * chunk_pixels_ : i % pieces_ * chunk_pixels_;
  }
  int64_t pixels(int64_t i) const {
    return std::min(chunk_pixels_, (channels_last_ ? problem_.n * problem_.s : problem_.s) - first_pixel(i));
  }
  int64_t x_offset(int64_t i) const { return offset(i, problem_.total); }
  int64_t h_offset(int64_t i) const { return offset(i, problem_.out); }
  int64_t offset(int64_t i, int64_t channels) const {
    return channels_last_ ? first_pixel(i) * channels : i / pieces_ * channels * problem_.s + first_pixel(i);
  }

  /// The chunk of a block of channels, the first of which is `first`.
  template <class AnyChunk>
  const AnyChunk& place(int64_t i, int64_t first, const std::optional<Next>& next, AnyChunk& chunk,
                        const void* x, const T* w) const {
    chunk.pixels = pixels(i);
    chunk.c = std::min(block_, problem_.c - first);
    chunk.out = problem_.out;
    chunk.channels_last = channels_last_;
    chunk.x_stride = channels_last_ ? problem_.total : problem_.s;
    chunk.h_stride = channels_last_ ? problem_.out : problem_.s;
    const double slope = problem_.activation == Activation::kLeakyReLU ? problem_.activation_param : 1;
    chunk.activation = {static_cast<T>(slope), problem_.activation == Activation::kReLU || slope == 0};
    chunk.coefficients = {coefficients_.mean + first, coefficients_.scale + first,
                          coefficients_.shift + first};
    chunk.x = static_cast<const S*>(x) + x_offset(i) + first;
    if (next) {
      const int64_t next_first = next->block * block_, channels = std::min(block_, problem_.c - next_first);
      chunk.next_x = static_cast<const S*>(x) + x_offset(next->chunk) + next_first;
      chunk.next_rows = channels_last_ ? pixels(next->chunk) : channels;
      chunk.next_width = channels_last_ ? channels : pixels(next->chunk);
    }
    chunk.w = w;
    chunk.z = scratch_of<T, ZScratch>(z_size());
    chunk.z_stride = z_stride();
    chunk.h_scratch_stride = scratch_stride(channels_last_ ? problem_.out : chunk_pixels_);
    chunk.h_scratch =
        scratch_of<T, HScratch>((channels_last_ ? chunk_pixels_ : problem_.out) * chunk.h_scratch_stride);
    return chunk;
  }

  const DenseProductProblem& problem_;
  const Kernels<S>& kernels_;
  const bool channels_last_;
  int64_t block_;  // channels
  int64_t chunk_pixels_ = 0, pieces_ = 1, chunks_ = 0;
  Coefficients<T> coefficients_{};
  T* per_dy_ = nullptr;
};

}  // namespace
}  // namespace dense_block

void dense_product(const DenseProductProblem& problem, const DenseNormalization& norm, const void* x,
                   const void* w, void* h) {
  dispatch_float(problem.dtype, [&]<class S>() {
    const dense_block::Call<S> call(dense_block::Pass::kForward, problem, norm);
    const auto* const packed = call.packed_weight(w, problem.layout == Layout::kChannelsLast);
    const int64_t threads = dense_block::threads_of(problem);
    dense_block::run(problem, call.chunks(), [&](int64_t i) {
      std::optional<dense_block::Next> next;
      if (i + threads < call.chunks()) next = {i + threads, 0};
      call.forward(i, next, x, packed, h);
    });
  });
}

void dense_product_backward(const DenseProductProblem& problem, const DenseNormalization& norm,
                            const DenseProductBackward& backward) {
  using namespace dense_block;
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const Call<S> call(Pass::kBackward, problem, norm);
    const T* const packed = call.packed_weight(backward.w, false);
    if (backward.gradient) call.set_per_dy(backward.per_dy);
    const int64_t dw_size = call.dw_size(), sums_size = 2 * problem.c;
    const int64_t room = kPartialBytes / (dw_size * static_cast<int64_t>(sizeof(T)));
    const int64_t blocks = call.blocks();
    const int64_t segments =
        std::clamp<int64_t>(std::min(ceil_divide(kTasks, blocks), room), 1, call.chunks());
    T* const dw = backward.dw ? scratch_of<T, PartialScratch>(segments * dw_size) : nullptr;
    double* const sums =
        backward.sum_dy ? scratch_of<double, PartialSumScratch>(segments * sums_size) : nullptr;
    if (sums) std::fill(sums, sums + segments * sums_size, 0.0);
    const int64_t threads = threads_of(problem);
    // Each segment has a chunk, the first of which writes dw.
    run(problem, segments * blocks, [&](int64_t task) {
      const int64_t segment = task / blocks, block = task % blocks;
      T* const own_dw = dw ? dw + segment * dw_size : nullptr;
      double* const own_sums = sums ? sums + segment * sums_size : nullptr;
      const int64_t begin = call.chunks() * segment / segments,
                    end = call.chunks() * (segment + 1) / segments;
      for (int64_t i = begin; i < end; ++i) {
        // The thread probably runs the task that no thread has taken when it ends this one.
        const int64_t after = task + threads;
        std::optional<Next> next;
        if (i + 1 < end)
          next = {i + 1, block};
        else if (after < segments * blocks)
          next = {call.chunks() * (after / blocks) / segments, after % blocks};
        call.backward(i, block, next, i > begin, backward, packed, own_dw, own_sums);
      }
    });
    for (int64_t c = 0; sums && c < problem.c; ++c) {
      double sum_dy = 0, sum_dy_x = 0;
      for (int64_t segment = 0; segment < segments; ++segment) {
        sum_dy += sums[segment * sums_size + c];
        sum_dy_x += sums[segment * sums_size + problem.c + c];
      }
      backward.sum_dy[c] = sum_dy;
      backward.sum_dy_x[c] = sum_dy_x - low_part<T>(norm.mean[c]) * sum_dy;
    }
    if (dw) call.add_segments(segments, dw, static_cast<T*>(backward.dw));
  });
}

void dense_feature_gradient(const DenseFeatureProblem& problem, const DenseCorrection& correction,
                            const void* x, const void* gradient, void* df) {
  using namespace dense_block;
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const auto& kernels = current_instruction_set().dense<S>();
    const int64_t count = problem.count, pixels = problem.s;
    T* const mean = scratch_of<T, VectorScratch>(3 * count);
    T *const constant = mean + count, *const per_deviation = constant + count;
    for (int64_t j = 0; j < count; ++j) {
      mean[j] = static_cast<T>(correction.mean[j]);
      constant[j] = static_cast<T>(correction.constant[j] -
                                   correction.per_deviation[j] * low_part<T>(correction.mean[j]));
      per_deviation[j] = static_cast<T>(correction.per_deviation[j]);
    }
    const bool channels_last = problem.layout == Layout::kChannelsLast;
    parallel_ranges(problem.n, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        for (int64_t j = 0; j < (channels_last ? 1 : count); ++j) {
          const int64_t from = channels_last ? n * pixels * problem.total + problem.first
                                             : (n * problem.total + problem.first + j) * pixels;
          kernels.feature_gradient({channels_last ? pixels : 1, channels_last ? count : pixels, problem.total,
                                    channels_last, mean + j, constant + j, per_deviation + j,
                                    static_cast<const S*>(x) + from, static_cast<const T*>(gradient) + from,
                                    static_cast<S*>(df) + (n * count + j) * pixels});
        }
    });
  });
}

}  // namespace palimpsest::kernels::cpu
