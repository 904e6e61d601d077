#include "palimpsest/kernels/dense_block.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>

namespace palimpsest::kernels::cpu {
namespace {

// Of z, and of dz: both stay in a second cache of 1 MiB, with the weights.
constexpr int64_t kDenseScratchBytes = int64_t{256} << 10;
constexpr int64_t kDenseMostPixels = 256;
constexpr int64_t kDenseFewestPixels = 16;
// Pieces of a backward pass, each with sums of its own: to occupy many cores, and to end together on few.
constexpr int64_t kDenseSegments = 32;
constexpr int64_t kDensePartialBytes = int64_t{8} << 20;  // of all segments' sums
// Below this many products, waking threads costs more than the work.
constexpr int64_t kDenseSerialProducts = int64_t{1} << 20;

struct ZScratch;
struct DzScratch;
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

/// How one layer is cut into chunks, and what all of them have in common.
template <class S>
class DenseCall {
  using T = accumulate_t<S>;

 public:
  DenseCall(const DenseProductProblem& layer, const DenseNormalization& norm)
      : l_(layer),
        kernels_(current_instruction_set().dense<S>()),
        channels_last_(layer.layout == Layout::kChannelsLast) {
    if (channels_last_) {
      const int64_t fit = kDenseScratchBytes / (scratch_stride(l_.c) * static_cast<int64_t>(sizeof(T)));
      // Tiles have 8 rows.
      chunk_pixels_ = std::clamp(fit / 8 * 8, kDenseFewestPixels, kDenseMostPixels);
      chunks_ = ceil_divide(l_.n * l_.s, chunk_pixels_);
    } else {
      const int64_t fit = kDenseScratchBytes / (l_.c * static_cast<int64_t>(sizeof(T)));
      const int64_t most =
          std::clamp(fit / kernels_.lanes * kernels_.lanes, kDenseFewestPixels, kDenseMostPixels);
      chunk_pixels_ = padded(ceil_divide(l_.s, ceil_divide(l_.s, most)));
      pieces_ = ceil_divide(l_.s, chunk_pixels_);
      chunks_ = l_.n * pieces_;
    }
    T* const vectors = scratch_of<T, VectorScratch>(4 * padded(l_.c));
    const auto widened = [&](int64_t which, const double* from) {
      T* const to = vectors + which * padded(l_.c);
      for (int64_t c = 0; c < padded(l_.c); ++c) to[c] = c < l_.c ? static_cast<T>(from[c]) : T(0);
      return to;
    };
    T* const shift = widened(2, norm.shift);
    coefficients_ = {widened(0, norm.mean), widened(1, norm.scale), shift};
    // The shift carries what of a mean does not fit into a T.
    for (int64_t c = 0; c < l_.c; ++c)
      shift[c] = static_cast<T>(norm.shift[c] - low_part(norm.mean[c]) * norm.scale[c]);
    per_dy_ = vectors + 3 * padded(l_.c);
  }

  int64_t chunks() const { return chunks_; }
  int64_t padded(int64_t count) const { return ceil_divide(count, kernels_.lanes) * kernels_.lanes; }
  static double low_part(double mean) { return mean - static_cast<double>(static_cast<T>(mean)); }

  const T* packed_weight(const void* w, bool transposed) const {
    T* const to = scratch_of<T, WeightScratch>(transposed ? l_.c * padded(l_.out) : l_.out * padded(l_.c));
    kernels_.pack_weight(l_.out, l_.c, static_cast<const S*>(w), transposed, to);
    return to;
  }

  void forward(int64_t i, const void* x, const T* w, void* h) const {
    DenseChunk<S> chunk;
    kernels_.forward(place(i, chunk, x, w), static_cast<S*>(h) + h_offset(i));
  }

  void set_per_dy(const double* per_dy) const {
    for (int64_t c = 0; c < padded(l_.c); ++c) per_dy_[c] = c < l_.c ? static_cast<T>(per_dy[c]) : T(0);
  }

  /// dw is added to; sums, (2, c) doubles, too. Either may be null.
  void backward(int64_t i, const DenseProductBackward& t, const T* w, T* dw, double* sums) const {
    DenseBackwardChunk<S> chunk;
    place(i, chunk, t.x, w);
    chunk.dh = static_cast<const S*>(t.dh) + h_offset(i);
    chunk.dz = scratch_of<T, DzScratch>(z_size());
    chunk.dw = dw;
    chunk.per_dy = per_dy_;
    if (t.gradient) chunk.gradient = static_cast<T*>(t.gradient) + x_offset(i);
    if (dw && !channels_last_)
      chunk.dh_transposed = scratch_of<T, TransposedScratch>(chunk_pixels_ * padded(l_.out));
    if (sums) {
      chunk.sum_dy = scratch_of<T, SumScratch>(2 * padded(l_.c));
      chunk.sum_dy_x = chunk.sum_dy + padded(l_.c);
    }
    kernels_.backward(chunk);
    if (!sums) return;
    for (int64_t c = 0; c < l_.c; ++c) {
      sums[c] += static_cast<double>(chunk.sum_dy[c]);
      sums[l_.c + c] += static_cast<double>(chunk.sum_dy_x[c]);
    }
  }

  /// The packed gradient of the weight.
  int64_t dw_size() const { return channels_last_ ? l_.out * padded(l_.c) : l_.c * padded(l_.out); }
  int64_t dw_index(int64_t o, int64_t c) const {
    return channels_last_ ? o * padded(l_.c) + c : c * padded(l_.out) + o;
  }

 private:
  /// An odd number of vectors: rows a power of two apart would fall on the same sets of a cache.
  int64_t scratch_stride(int64_t width) const {
    const int64_t vectors = ceil_divide(width, kernels_.lanes);
    return (vectors + 1 - vectors % 2) * kernels_.lanes;
  }
  int64_t z_stride() const { return scratch_stride(channels_last_ ? l_.c : chunk_pixels_); }
  int64_t z_size() const { return (channels_last_ ? chunk_pixels_ : l_.c) * z_stride(); }

  int64_t first_pixel(int64_t i) const {
    return channels_last_ ? i * chunk_pixels_ : i % pieces_ * chunk_pixels_;
  }
  int64_t pixels(int64_t i) const {
    return std::min(chunk_pixels_, (channels_last_ ? l_.n * l_.s : l_.s) - first_pixel(i));
  }
  int64_t x_offset(int64_t i) const { return offset(i, l_.total); }
  int64_t h_offset(int64_t i) const { return offset(i, l_.out); }
  int64_t offset(int64_t i, int64_t channels) const {
    return channels_last_ ? first_pixel(i) * channels : i / pieces_ * channels * l_.s + first_pixel(i);
  }

  template <class Chunk>
  const Chunk& place(int64_t i, Chunk& chunk, const void* x, const T* w) const {
    chunk.pixels = pixels(i);
    chunk.c = l_.c;
    chunk.out = l_.out;
    chunk.channels_last = channels_last_;
    chunk.x_stride = channels_last_ ? l_.total : l_.s;
    chunk.h_stride = channels_last_ ? l_.out : l_.s;
    chunk.activation = {static_cast<T>(l_.activation == Activation::kLeakyReLU ? l_.activation_param : 1),
                        l_.activation == Activation::kReLU};
    chunk.coefficients = coefficients_;
    chunk.x = static_cast<const S*>(x) + x_offset(i);
    chunk.w = w;
    chunk.z = scratch_of<T, ZScratch>(z_size());
    chunk.z_stride = z_stride();
    chunk.h_scratch_stride = scratch_stride(channels_last_ ? l_.out : chunk_pixels_);
    chunk.h_scratch =
        scratch_of<T, HScratch>((channels_last_ ? chunk_pixels_ : l_.out) * chunk.h_scratch_stride);
    return chunk;
  }

  const DenseProductProblem& l_;
  const DenseKernels<S>& kernels_;
  const bool channels_last_;
  int64_t chunk_pixels_ = 0, pieces_ = 1, chunks_ = 0;
  DenseCoefficients<T> coefficients_{};
  T* per_dy_ = nullptr;
};

template <class Task>
void run_dense(const DenseProductProblem& l, int64_t count, const Task& task) {
  if (l.n * l.s * l.c * l.out >= kDenseSerialProducts) return parallel_tasks(count, task);
  for (int64_t i = 0; i < count; ++i) task(i);
}

}  // namespace

void dense_product(const DenseProductProblem& layer, const DenseNormalization& norm, const void* x,
                   const void* w, void* h) {
  dispatch_float(layer.dtype, [&]<class S>() {
    const DenseCall<S> call(layer, norm);
    const auto* const packed = call.packed_weight(w, layer.layout == Layout::kChannelsLast);
    run_dense(layer, call.chunks(), [&](int64_t i) { call.forward(i, x, packed, h); });
  });
}

void dense_product_backward(const DenseProductProblem& layer, const DenseNormalization& norm,
                            const DenseProductBackward& t) {
  dispatch_float(layer.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const DenseCall<S> call(layer, norm);
    const T* const packed = call.packed_weight(t.w, false);
    if (t.gradient) call.set_per_dy(t.per_dy);
    const int64_t dw_size = call.dw_size(), sums_size = 2 * layer.c;
    const int64_t room = kDensePartialBytes / (dw_size * static_cast<int64_t>(sizeof(T)));
    const int64_t segments = std::clamp<int64_t>(std::min(kDenseSegments, room), 1, call.chunks());
    T* const dw = t.dw ? scratch_of<T, PartialScratch>(segments * dw_size) : nullptr;
    double* const sums = t.sum_dy ? scratch_of<double, PartialSumScratch>(segments * sums_size) : nullptr;
    run_dense(layer, segments, [&](int64_t segment) {
      T* const own_dw = dw ? dw + segment * dw_size : nullptr;
      double* const own_sums = sums ? sums + segment * sums_size : nullptr;
      if (dw) std::fill(own_dw, own_dw + dw_size, T(0));
      if (sums) std::fill(own_sums, own_sums + sums_size, 0.0);
      const int64_t begin = call.chunks() * segment / segments,
                    end = call.chunks() * (segment + 1) / segments;
      for (int64_t i = begin; i < end; ++i) call.backward(i, t, packed, own_dw, own_sums);
    });
    for (int64_t c = 0; sums && c < layer.c; ++c) {
      t.sum_dy[c] = t.sum_dy_x[c] = 0;
      for (int64_t segment = 0; segment < segments; ++segment) {
        t.sum_dy[c] += sums[segment * sums_size + c];
        t.sum_dy_x[c] += sums[segment * sums_size + layer.c + c];
      }
      t.sum_dy_x[c] -= call.low_part(norm.mean[c]) * t.sum_dy[c];
    }
    for (int64_t o = 0; dw && o < layer.out; ++o)
      for (int64_t c = 0; c < layer.c; ++c) {
        T sum = 0;
        for (int64_t segment = 0; segment < segments; ++segment)
          sum += dw[segment * dw_size + call.dw_index(o, c)];
        static_cast<T*>(t.dw)[o * layer.c + c] = sum;
      }
  });
}

void dense_feature_gradient(const DenseFeatureProblem& f, const DenseCorrection& k, const void* x,
                            const void* gradient, void* df) {
  dispatch_float(f.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const auto& kernels = current_instruction_set().dense<S>();
    T* const vectors = scratch_of<T, VectorScratch>(3 * f.count);
    T *const mean = vectors, *const constant = mean + f.count, *const per_deviation = constant + f.count;
    for (int64_t j = 0; j < f.count; ++j) {
      mean[j] = static_cast<T>(k.mean[j]);
      constant[j] = static_cast<T>(k.constant[j] - k.per_deviation[j] * (k.mean[j] - mean[j]));
      per_deviation[j] = static_cast<T>(k.per_deviation[j]);
    }
    const bool channels_last = f.layout == Layout::kChannelsLast;
    parallel_ranges(f.n, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n)
        for (int64_t j = 0; j < (channels_last ? 1 : f.count); ++j) {
          const int64_t from =
              channels_last ? n * f.s * f.total + f.first : (n * f.total + f.first + j) * f.s;
          kernels.feature_gradient({channels_last ? f.s : 1, channels_last ? f.count : f.s, f.total,
                                    channels_last, mean + j, constant + j, per_deviation + j,
                                    static_cast<const S*>(x) + from, static_cast<const T*>(gradient) + from,
                                    static_cast<S*>(df) + (n * f.count + j) * f.s});
        }
    });
  });
}

}  // namespace palimpsest::kernels::cpu
