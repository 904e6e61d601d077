// A unit of one instruction set: raw pointers and own namespaces only, nothing of std:: (see abn_f32.cpp).
#include "palimpsest/kernels/cpu/dense_block/kernels.h"

#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace dense {
namespace {

// 24 sums of 32 registers beside 3 vectors of b and a broadcast; of 16 registers 12.
constexpr int64_t kTileRows = PALIMPSEST_VECTOR_BYTES == 64 ? 8 : 4;
constexpr int64_t kTileVectors = 3;

template <class T>
constexpr int64_t kLanes = lanes<T, Vector<T>>();

template <class T>
PALIMPSEST_HOST_DEVICE int64_t padded(int64_t count) {
  return (count + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// ---- The ends of rows

/// The first `count` values, zeros behind them; nothing behind them is read.
template <class V, class S>
PALIMPSEST_HOST_DEVICE V load_first(const S* from, int64_t count) {
  constexpr int64_t kCount = lanes<MathsOf<S>, V>();
  if (count >= kCount) return load_as<V>(from);
// A call of memcpy for each row's end would be a tenth of a chunk's time.
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64 && __is_same(S, float))
    return (V)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), from);
  if constexpr (sizeof(V) == 64 && __is_same(S, double))
    return (V)_mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << count) - 1), from);
#endif
  S values[kCount] = {};
  __builtin_memcpy(static_cast<void*>(values), from, static_cast<size_t>(count) * sizeof(S));
  return load_as<V>(values);
}

template <class S, class V>
PALIMPSEST_HOST_DEVICE void store_first(S* to, V v, int64_t count) {
  constexpr int64_t kCount = lanes<MathsOf<S>, V>();
  if (count >= kCount) return store_as(to, v, false);
#ifdef __AVX512F__
  if constexpr (sizeof(V) == 64 && __is_same(S, float))
    return _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
  if constexpr (sizeof(V) == 64 && __is_same(S, double))
    return _mm512_mask_storeu_pd(to, static_cast<__mmask8>((1u << count) - 1), (__m512d)v);
#endif
  S values[kCount];
  store_as(values, v, false);
  __builtin_memcpy(static_cast<void*>(to), values, static_cast<size_t>(count) * sizeof(S));
}

/// v with all lanes but the first `count` set to zero.
template <class T, class V>
PALIMPSEST_HOST_DEVICE V first_lanes(V v, int64_t count) {
  T values[kLanes<T>];
  if (count >= kLanes<T>) return v;
  store(values, v);
  return load_first<V>(values, count);
}

template <class S>
void widen_rows(int64_t rows, int64_t width, const S* from, int64_t stride, MathsOf<S>* to,
                int64_t to_stride) {
  using V = Vector<MathsOf<S>>;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; j += kLanes<MathsOf<S>>)
      store(to + r * to_stride + j, load_first<V>(from + r * stride + j, width - j));
}

template <class S>
void store_rows(int64_t rows, int64_t width, const MathsOf<S>* from, int64_t stride, S* to,
                int64_t to_stride) {
  using V = Vector<MathsOf<S>>;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; j += kLanes<MathsOf<S>>)
      store_first(to + r * to_stride + j, load<V>(from + r * stride + j), width - j);
}

// ---- Products of matrices

/// a(row, step), read one by one, for b is what fills vectors.
template <class T>
struct Left {
  const T* values;
  int64_t row, step;
};

/// out[r][j] = sum over k < count of a(r, k) * b[k][j], or more of it, for at most kTileRows rows and exactly
/// kVectors vectors of columns.
template <class T, int64_t kVectors>
void tile(int64_t count, int64_t rows, const Left<T>& a, const T* b, int64_t b_stride, T* out,
          int64_t out_stride, bool add) {
  using V = Vector<T>;
  const T* from[kTileRows];
#pragma GCC unroll 8
  for (int64_t r = 0; r < kTileRows; ++r) from[r] = a.values + (r < rows ? r : 0) * a.row;
  V sums[kTileRows][kVectors] = {};
  int64_t at = 0;
  for (int64_t k = 0; k < count; ++k, at += a.step, b += b_stride) {
    V from_b[kVectors];
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) from_b[v] = load<V>(b + v * kLanes<T>);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kTileRows; ++r) {
      const V from_a = from[r][at] - V{};  // minus zero: the one that no value changes by
#pragma GCC unroll 3
      for (int64_t v = 0; v < kVectors; ++v) sums[r][v] += from_a * from_b[v];
    }
  }
  // Unrolled, for an index that the compiler does not know would keep the sums in memory all along.
#pragma GCC unroll 8
  for (int64_t r = 0; r < kTileRows; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 3
    for (int64_t v = 0; v < kVectors; ++v) {
      T* const to = out + r * out_stride + v * kLanes<T>;
      store(to, add ? V(load<V>(to) + sums[r][v]) : sums[r][v]);
    }
  }
}

/// The whole product; columns in whole vectors. A strip of b stays in the first cache for all rows.
template <class T>
void multiply(int64_t count, int64_t rows, int64_t columns, const Left<T>& a, const T* b, int64_t b_stride,
              T* out, int64_t out_stride, bool add) {
  const int64_t vectors = (columns + kLanes<T> - 1) / kLanes<T>;
  for (int64_t v = 0; v < vectors; v += kTileVectors) {
    const int64_t at = v * kLanes<T>, left = vectors - v;
    for (int64_t r = 0; r < rows; r += kTileRows) {
      const Left<T> some{a.values + r * a.row, a.row, a.step};
      T* const to = out + r * out_stride + at;
      const int64_t count_of_rows = smaller(kTileRows, rows - r);
      if (left >= 3)
        tile<T, 3>(count, count_of_rows, some, b + at, b_stride, to, out_stride, add);
      else if (left == 2)
        tile<T, 2>(count, count_of_rows, some, b + at, b_stride, to, out_stride, add);
      else
        tile<T, 1>(count, count_of_rows, some, b + at, b_stride, to, out_stride, add);
    }
  }
}

// ---- Normalization and activation

/// One channel's argument, for all columns of a row or for one of its vectors.
template <class T>
PALIMPSEST_HOST_DEVICE Vector<T> argument(const T* values, bool columns, int64_t row, int64_t j) {
  return columns ? load<Vector<T>>(values + j) : broadcast<Vector<T>>(values[row]);
}

template <class S, bool kColumns>
void normalize_rows(const DenseChunk<S>& t, int64_t rows, int64_t width) {
  using T = MathsOf<S>;
  using V = Vector<T>;
  constexpr int64_t kTogether = kColumns ? 4 : 1;  // rows to one reading of the arguments
  const bool relu = t.activation.relu;
  for (int64_t first = 0; first < rows; first += kTogether) {
    const int64_t some = smaller(kTogether, rows - first);
    for (int64_t j = 0; j < width; j += kLanes<T>) {
      const V mean = argument(t.coefficients.mean, kColumns, first, j),
              scale = argument(t.coefficients.scale, kColumns, first, j),
              shift = argument(t.coefficients.shift, kColumns, first, j);
      for (int64_t r = first; r < first + some; ++r) {
        const V y = (load_first<V>(t.x + r * t.x_stride + j, width - j) - mean) * scale + shift;
        const V below = relu ? V{} : V(y * t.activation.slope);
        store(t.z + r * t.z_stride + j, as_stored<S>(V(y <= T(0) ? below : y)));
      }
    }
  }
}

/// From dz to the gradient, and the sums: per column, or per row.
template <class S, bool kColumns>
void differentiate_rows(const DenseBackwardChunk<S>& t, int64_t rows, int64_t width) {
  using T = MathsOf<S>;
  using V = Vector<T>;
  constexpr int64_t kTogether = kColumns ? 8 : 1;
  const bool relu = t.activation.relu;
  if (kColumns && t.sum_dy)
    for (int64_t j = 0; j < padded<T>(width); ++j) t.sum_dy[j] = t.sum_dy_x[j] = 0;
  for (int64_t first = 0; first < rows; first += kTogether) {
    const int64_t some = smaller(kTogether, rows - first);
    V row_dy{}, row_dy_x{};
    for (int64_t j = 0; j < width; j += kLanes<T>) {
      const int64_t left = width - j;
      const V mean = argument(t.coefficients.mean, kColumns, first, j);
      const V per_dy = t.gradient ? argument(t.per_dy, kColumns, first, j) : V{};
      V dys{}, dys_x{};
      for (int64_t r = first; r < first + some; ++r) {
        const V z = load<V>(t.z + r * t.z_stride + j), dz = load<V>(t.dz + r * t.z_stride + j);
        const V below = relu ? V{} : V(dz * t.activation.slope);
        const V dy = z > T(0) ? dz : below;
        dys += dy;
        dys_x += dy * (load_first<V>(t.x + r * t.x_stride + j, left) - mean);
        if (t.gradient) {
          T* const g = t.gradient + r * t.x_stride + j;
          store_first<T>(g, V(load_first<V>(g, left) + dy * per_dy), left);
        }
      }
      if (kColumns && t.sum_dy) {
        store(t.sum_dy + j, V(load<V>(t.sum_dy + j) + dys));
        store(t.sum_dy_x + j, V(load<V>(t.sum_dy_x + j) + dys_x));
      } else if (!kColumns) {
        // What stands behind the last column is arbitrary.
        row_dy += first_lanes<T>(dys, left);
        row_dy_x += first_lanes<T>(dys_x, left);
      }
    }
    if (!kColumns && t.sum_dy) {
      t.sum_dy[first] = static_cast<T>(sum<T>(row_dy));
      t.sum_dy_x[first] = static_cast<T>(sum<T>(row_dy_x));
    }
  }
}

// ---- What a table holds

template <class S>
void pack_weight(int64_t out, int64_t c, const S* w, bool transposed, MathsOf<S>* to) {
  using T = MathsOf<S>;
  const int64_t stride = padded<T>(transposed ? out : c);
  for (int64_t r = 0; r < (transposed ? c : out); ++r)
    for (int64_t j = 0; j < stride; ++j) {
      const bool inside = j < (transposed ? out : c);
      to[r * stride + j] = inside ? load_as<T>(transposed ? w + j * c + r : w + r * c + j) : T(0);
    }
}

template <class S>
void forward(const DenseChunk<S>& t, S* h) {
  using T = MathsOf<S>;
  const int64_t rows = t.channels_last ? t.pixels : t.out, width = t.channels_last ? t.out : t.pixels;
  bool direct = false;
  if constexpr (!kIs16Bit<S>) direct = width % kLanes<T> == 0;
  T* const to = direct ? reinterpret_cast<T*>(h) : t.h_scratch;
  const int64_t to_stride = direct ? t.h_stride : t.h_scratch_stride;
  if (t.channels_last) {
    normalize_rows<S, true>(t, t.pixels, t.c);
    multiply<T>(t.c, rows, width, {t.z, t.z_stride, 1}, t.w, padded<T>(t.out), to, to_stride, false);
  } else {
    normalize_rows<S, false>(t, t.c, t.pixels);
    multiply<T>(t.c, rows, width, {t.w, padded<T>(t.c), 1}, t.z, t.z_stride, to, to_stride, false);
  }
  if (!direct) store_rows<S>(rows, width, t.h_scratch, t.h_scratch_stride, h, t.h_stride);
}

template <class S>
void backward(const DenseBackwardChunk<S>& t) {
  using T = MathsOf<S>;
  const int64_t rows = t.channels_last ? t.pixels : t.out, width = t.channels_last ? t.out : t.pixels;
  bool direct = false;
  if constexpr (!kIs16Bit<S>) direct = t.channels_last || width % kLanes<T> == 0;
  if (!direct) widen_rows<S>(rows, width, t.dh, t.h_stride, t.h_scratch, t.h_scratch_stride);
  const T* const dh = direct ? reinterpret_cast<const T*>(t.dh) : t.h_scratch;
  const int64_t dh_stride = direct ? t.h_stride : t.h_scratch_stride, w_stride = padded<T>(t.c);
  const bool to_x = t.gradient || t.sum_dy;
  if (t.channels_last) {
    normalize_rows<S, true>(t, t.pixels, t.c);
    if (to_x) multiply<T>(t.out, t.pixels, t.c, {dh, dh_stride, 1}, t.w, w_stride, t.dz, t.z_stride, false);
    if (t.dw) multiply<T>(t.pixels, t.out, t.c, {dh, 1, dh_stride}, t.z, t.z_stride, t.dw, w_stride, true);
    if (to_x) differentiate_rows<S, true>(t, t.pixels, t.c);
  } else {
    normalize_rows<S, false>(t, t.c, t.pixels);
    if (to_x) multiply<T>(t.out, t.c, t.pixels, {t.w, 1, w_stride}, dh, dh_stride, t.dz, t.z_stride, false);
    if (t.dw) {
      const int64_t stride = padded<T>(t.out);
      for (int64_t o = 0; o < t.out; ++o)
        for (int64_t p = 0; p < t.pixels; ++p) t.dh_transposed[p * stride + o] = dh[o * dh_stride + p];
      multiply<T>(t.pixels, t.c, t.out, {t.z, t.z_stride, 1}, t.dh_transposed, stride, t.dw, stride, true);
    }
    if (to_x) differentiate_rows<S, false>(t, t.c, t.pixels);
  }
}

template <class S>
void feature_gradient(const DenseSlot<S>& t) {
  using T = MathsOf<S>;
  using V = Vector<T>;
  for (int64_t r = 0; r < t.rows; ++r)
    for (int64_t j = 0; j < t.width; j += kLanes<T>) {
      const int64_t left = t.width - j, at = r * t.stride + j;
      const auto of = [&](const T* values) PALIMPSEST_INLINE_LAMBDA {
        return t.channels_last ? load_first<V>(values + j, left) : broadcast<V>(*values);
      };
      const V df = load_first<V>(t.gradient + at, left) - of(t.constant) -
                   of(t.per_deviation) * (load_first<V>(t.x + at, left) - of(t.mean));
      store_first(t.df + r * t.width + j, df, left);
    }
}

template <class S>
constexpr DenseKernels<S> table() {
  return {kLanes<MathsOf<S>>, pack_weight<S>, forward<S>, backward<S>, feature_gradient<S>};
}

}  // namespace
}  // namespace dense

extern const DenseKernels<float> kDenseF32 = dense::table<float>();
extern const DenseKernels<double> kDenseF64 = dense::table<double>();
extern const DenseKernels<Float16> kDenseF16 = dense::table<Float16>();
extern const DenseKernels<BFloat16> kDenseBF16 = dense::table<BFloat16>();

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
