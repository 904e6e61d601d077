// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/upsampled_loss/kernels.h"

#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/math.h"
#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::upsampled_loss {

using cpu::upsampled_loss::Kernels;
using cpu::upsampled_loss::kLowest;
using cpu::upsampled_loss::PixelLosses;
using cpu::upsampled_loss::Row;
using cpu::upsampled_loss::Sweeps;

namespace {

/// Returns the lanes of v combined, in pairs of halves.
template <class T, class V, class Combine>
PALIMPSEST_HOST_DEVICE T across_lanes(V v, const Combine& combine) {
  constexpr int64_t kLanes = lanes<T, V>();
  if constexpr (kLanes == 16)
    return across_lanes<T>(combine(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                                   __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)),
                           combine);
  else if constexpr (kLanes == 8)
    return across_lanes<T>(
        combine(__builtin_shufflevector(v, v, 0, 1, 2, 3), __builtin_shufflevector(v, v, 4, 5, 6, 7)),
        combine);
  else if constexpr (kLanes == 4)
    return across_lanes<T>(combine(__builtin_shufflevector(v, v, 0, 1), __builtin_shufflevector(v, v, 2, 3)),
                           combine);
  else
    return combine(v[0], v[1]);
}

/// One instruction. It may lose a NaN, whose own exponential then carries it into the sum.
struct Larger {
  template <class V>
  PALIMPSEST_HOST_DEVICE V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};
struct Sum {
  template <class V>
  PALIMPSEST_HOST_DEVICE V operator()(V a, V b) const {
    return a + b;
  }
};

template <class T>
void blend(const Row<T>& row) {
  using V = Vector<T>;
  const T w = row.bottom_weight, v = 1 - w;
  const int64_t values = row.width * row.stride;
  if (w == 0) {
    for (int64_t i = 0; i < values; i += lanes<T, V>()) store(row.blended + i, load<V>(row.top + i));
    return;
  }
  for (int64_t i = 0; i < values; i += lanes<T, V>())
    store(row.blended + i, V(load<V>(row.top + i) * v + load<V>(row.bottom + i) * w));
}

/// Calls function(Constant<vectors per pixel>{}): up to 4, whose logits stay in registers; 0 for more.
template <class T, class Function>
PALIMPSEST_HOST_DEVICE void with_vectors(int64_t stride, const Function& function) {
  const int64_t vectors = stride / lanes<T, Vector<T>>();
  if (vectors <= 4)
    with_constant<int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}>(vectors, function);
  else
    function(Constant<int64_t{0}>{});
}

/// Returns 0, 1, 2, ...
template <class T>
PALIMPSEST_HOST_DEVICE Vector<typename Bits<T>::type> lane_numbers() {
  Vector<typename Bits<T>::type> lane;
  for (int64_t i = 0; i < lanes<T, Vector<T>>(); ++i) lane[i] = static_cast<typename Bits<T>::type>(i);
  return lane;
}

template <class T, int64_t kVectors>
PALIMPSEST_HOST_DEVICE void losses_of(const Row<T>& row, const PixelLosses<T>& asked) {
  using V = Vector<T>;
  using Int = Vector<typename Bits<T>::type>;
  constexpr int64_t kLanes = lanes<T, V>();
  const int64_t vectors = kVectors > 0 ? kVectors : row.stride / kLanes;
  V local[kVectors > 0 ? kVectors : 1];
  T* const memory = row.logits;
  const auto get = [&](int64_t k) PALIMPSEST_INLINE_LAMBDA -> V {
    if constexpr (kVectors > 0)
      return local[k];
    else
      return load<V>(memory + k * kLanes);
  };
  const auto put = [&](int64_t k, V v) PALIMPSEST_INLINE_LAMBDA {
    if constexpr (kVectors > 0)
      local[k] = v;
    else
      store(memory + k * kLanes, v);
  };
  const Int lane = lane_numbers<T>();
  const auto is_class = [&](int64_t k) PALIMPSEST_INLINE_LAMBDA -> Int {
    return lane < static_cast<typename Bits<T>::type>(row.channels - k * kLanes);
  };
  for (int64_t j = 0; j < row.pixels; ++j) {
    const int32_t t = asked.target[j];
    asked.gap[j] = 0;
    asked.log_sum[j] = 1;
    if (asked.smooth) asked.smooth[j] = 0;
    if (t < 0) continue;
    const int64_t at = row.left[j] * row.stride;
    const T* const left = row.blended + at;
    const T u = row.right_weight[j], v = 1 - u;
    const int64_t right = u == 0 ? 0 : row.stride;  // NaN beyond the pixel does not reach it
    V largest = broadcast<V>(kLowest<T>);
    for (int64_t k = 0; k < vectors; ++k) {
      const T* const from = left + k * kLanes;
      const V z = right == 0 ? load<V>(from) : V(load<V>(from) * v + load<V>(from + right) * u);
      put(k, z);
      largest = Larger()(largest, z);
    }
    T top = across_lanes<T>(largest, Larger());
    T z_of_target;
    if constexpr (kVectors > 0)
      z_of_target = right == 0 ? left[t] : left[t] * v + left[right + t] * u;
    else
      z_of_target = memory[t];
    if (!(top > kLowest<T>)) {  // the lanes behind the last class, which hold kLowest, would count
      V most = broadcast<V>(T(-__builtin_inf()));
      for (int64_t k = 0; k < vectors; ++k) most = Larger()(most, is_class(k) ? get(k) : most);
      top = across_lanes<T>(most, Larger());
      for (int64_t k = 0; k < vectors; ++k) put(k, is_class(k) ? V(get(k) - top) : broadcast<V>(kLowest<T>));
      z_of_target -= top;
      top = 0;
    }
    V sum{}, smooth{};
    for (int64_t k = 0; k < vectors; ++k) {
      const V below = get(k) - top;
      if (asked.class_weight) smooth -= below * load<V>(asked.class_weight + k * kLanes);
      const V e = exp_or_zero<T>(below);
      put(k, e);
      sum += e;
    }
    const T total = across_lanes<T>(sum, Sum());
    asked.gap[j] = top - z_of_target;
    asked.log_sum[j] = total;
    if (asked.smooth) asked.smooth[j] = across_lanes<T>(smooth, Sum());
    if (!asked.row_gradient) continue;
    const T factor = asked.scale[t] / total;
    T* const to = asked.row_gradient + at;
    for (int64_t k = 0; k < vectors; ++k) {
      const Int channel = lane + static_cast<typename Bits<T>::type>(k * kLanes);
      V d = get(k) * factor;
      d = channel == static_cast<typename Bits<T>::type>(t) ? d - asked.hit[t] : d;
      if (asked.offset) d -= load<V>(asked.offset + k * kLanes);
      T* const here = to + k * kLanes;
      store(here, V(load<V>(here) + d * v));
      store(here + right, V(load<V>(here + right) + d * u));
    }
  }
}

/// Classes that are few enough for a vector of pixels: a vector of classes would be empty for the most part.
constexpr int64_t kFewClasses = 8;

/// Does the same as losses_of, a vector of pixels at a time.
template <class T, int64_t kClasses>
PALIMPSEST_HOST_DEVICE void losses_of_few(const Row<T>& row, const PixelLosses<T>& asked) {
  using V = Vector<T>;
  using Lane = typename Bits<T>::type;
  using Int = Vector<Lane>;
  constexpr int64_t kLanes = lanes<T, V>();
  for (int64_t j = 0; j < row.pixels; j += kLanes) {
    const V u = load<V>(row.right_weight + j), v = T(1) - u;
    V z[kClasses];
    for (int64_t c = 0; c < kClasses; ++c) {
      T left[kLanes], right[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) {
        const T* const from = row.blended + row.left[j + i] * row.stride + c;
        left[i] = from[0];
        right[i] = from[row.stride];
      }
      const V a = load<V>(left), b = load<V>(right);
      z[c] = u == V{} ? a : a * v + b * u;
    }
    Int t;
    for (int64_t i = 0; i < kLanes; ++i) t[i] = asked.target[j + i];
    V top = z[0], of_target = z[0], scale{}, hit{}, smooth{}, sum{};
    for (int64_t c = 1; c < kClasses; ++c) top = Larger()(top, z[c]);
    for (int64_t c = 0; c < kClasses; ++c) {
      const Int here = t == static_cast<Lane>(c);
      of_target = here ? z[c] : of_target;
      if (asked.row_gradient) {
        scale = here ? broadcast<V>(asked.scale[c]) : scale;
        hit = here ? broadcast<V>(asked.hit[c]) : hit;
      }
      const V below = z[c] - top;
      if (asked.class_weight) smooth -= below * asked.class_weight[c];
      z[c] = exp_or_zero<T>(below);
      sum += z[c];
    }
    const Int counts = t >= static_cast<Lane>(0);
    store(asked.gap + j, V(counts ? top - of_target : V{}));
    store(asked.log_sum + j, V(counts ? sum : V{} + T(1)));
    if (asked.smooth) store(asked.smooth + j, V(counts ? smooth : V{}));
    if (!asked.row_gradient) continue;
    const V factor = scale / sum;
    for (int64_t c = 0; c < kClasses; ++c) {
      V d = z[c] * factor;
      d = t == static_cast<Lane>(c) ? d - hit : d;
      if (asked.offset) d -= asked.offset[c];
      d = counts ? d : V{};
      T left[kLanes], right[kLanes];
      store(left, V(d * v));
      store(right, V(d * u));
      for (int64_t i = 0; i < kLanes; ++i) {
        T* const to = asked.row_gradient + row.left[j + i] * row.stride + c;
        to[0] += left[i];
        to[row.stride] += right[i];
      }
    }
  }
}

template <class T>
void losses(const Row<T>& row, const PixelLosses<T>& asked) {
  using V = Vector<T>;
  constexpr int64_t kLanes = lanes<T, V>();
  blend(row);
  const int64_t values = row.width * row.stride;
  if (asked.row_gradient)
    for (int64_t i = 0; i < values + row.stride; i += kLanes) store(asked.row_gradient + i, V{});
  if (row.channels <= kFewClasses)
    with_constant<int64_t{1}, int64_t{2}, int64_t{3}, int64_t{4}, int64_t{5}, int64_t{6}, int64_t{7},
                  kFewClasses>(row.channels, [&](auto classes) { losses_of_few<T, classes>(row, asked); });
  else
    with_vectors<T>(row.stride, [&](auto vectors) { losses_of<T, vectors>(row, asked); });
  // The last vector's lanes past the row hold logarithms of the row before, which may be negative.
  for (int64_t j = row.pixels; j % kLanes != 0; ++j) asked.log_sum[j] = 1;
  for (int64_t j = 0; j < row.pixels; j += kLanes)
    store(asked.log_sum + j, log_positive<T>(load<V>(asked.log_sum + j)));
  if (!asked.row_gradient) return;
  const T w = row.bottom_weight, v = 1 - w;
  for (int64_t i = 0; i < values; i += kLanes) {
    const V d = load<V>(asked.row_gradient + i);
    store(asked.top_gradient + i, V(load<V>(asked.top_gradient + i) + d * v));
    store(asked.bottom_gradient + i, V(load<V>(asked.bottom_gradient + i) + d * w));
  }
}

template <class T>
void argmax(const Row<T>& row, int32_t* ids) {
  blend(row);
  for (int64_t j = 0; j < row.pixels; ++j) {
    using V = Vector<T>;
    using Int = Vector<typename Bits<T>::type>;
    constexpr int64_t kLanes = lanes<T, V>();
    const T* const left = row.blended + row.left[j] * row.stride;
    const T u = row.right_weight[j], v = 1 - u;
    const int64_t right = u == 0 ? 0 : row.stride;
    V best = right == 0 ? load<V>(left) : V(load<V>(left) * v + load<V>(left + right) * u);
    Int place{};
    const auto take = [&](int64_t k, Int is_class) PALIMPSEST_INLINE_LAMBDA {
      const T* const from = left + k * kLanes;
      const V z = right == 0 ? load<V>(from) : V(load<V>(from) * v + load<V>(from + right) * u);
      const Int better = ((z > best) | ((z != z) & (best == best))) & is_class;
      best = better ? z : best;
      place = better ? Int{} + static_cast<typename Bits<T>::type>(k) : place;
    };
    const int64_t last = row.stride / kLanes - 1;
    for (int64_t k = 1; k < last; ++k) take(k, ~Int{});
    if (last > 0)
      take(last, lane_numbers<T>() < static_cast<typename Bits<T>::type>(row.channels - last * kLanes));
    T value = best[0];
    int64_t id = place[0] * kLanes;
    for (int64_t i = 1; i < kLanes; ++i) {
      const int64_t other = place[i] * kLanes + i;
      const bool nan = best[i] != best[i], had_nan = value != value;
      const bool equal = best[i] == value || (nan && had_nan);
      if (other >= row.channels) continue;
      if ((nan && !had_nan) || best[i] > value || (equal && other < id)) {
        value = best[i];
        id = other;
      }
    }
    ids[j] = static_cast<int32_t>(id);
  }
}

template <class T>
constexpr Sweeps<T> kSweeps = {lanes<T, Vector<T>>(), losses<T>, argmax<T>};

}  // namespace

extern const Kernels kKernels = {kSweeps<float>, kSweeps<double>};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::upsampled_loss
