// The sweeps of one instruction set; see abn_kernels.h. Compiled once for each, with that set's flags, so
// nothing here may come from std:: (an inline function of it would become a weak symbol full of instructions
// that older machines lack, and the linker might pick that copy for everyone). tests/kernels looks at the
// symbols.
#include "palimpsest/kernels/cpu/abn_kernels.h"

#include "palimpsest/kernels/cpu/sweep.h"
#include "palimpsest/kernels/cpu/vector_math.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace {

constexpr int64_t kPivotSamples = 8;

// ---- What happens to one vector
// ------------------------------------------------------------------------------------

template <class V>
struct Output {
  V z, xhat;
};

template <class T, class V>
PALIMPSEST_HOST_DEVICE void write(T* at, V value, bool aligned, Destination to) {
  if (aligned && to == Destination::kPastCaches)
    store_past_caches(at, value);
  else
    store(at, value);
}

enum class From { kOutput, kKept, kNothing };  // where t comes from: z, the kept xhat, or it is not needed

template <From kFrom, class T, class V, class Act>
PALIMPSEST_HOST_DEVICE Pair<V> gradient(const Act& act, const T* z, const T* xhat, const T* dz, V bias) {
  const V out = load<V>(z);
  Pair<V> result{load<V>(dz) * act.template derivative<V>(out), V{}};
  if constexpr (kFrom == From::kOutput) result.b = act.template inverse<V>(out) - bias;
  if constexpr (kFrom == From::kKept) result.b = load<V>(xhat);
  return result;
}

template <class V>
PALIMPSEST_HOST_DEVICE Pair<V> times_second(Pair<V> p) {
  return {p.a, p.a * p.b};
}

// ---- Moments
// -------------------------------------------------------------------------------------------------------

// Chan, Golub, LeVeque: adds `count` values to the `before` values whose mean and squared deviations are
// given.
PALIMPSEST_HOST_DEVICE void merge(double before, double count, double new_mean, double new_squares,
                                  double& mean, double& squares) {
  const double share = count / (before + count);
  const double delta = new_mean - mean;
  mean += delta * share;
  squares += new_squares + delta * delta * before * share;
}

// Sums around a pivot lose digits when it lies far from the mean: beyond 3 standard deviations, one digit, we
// repeat.
PALIMPSEST_HOST_DEVICE bool is_far(double count, double sum, double squares) {
  const double between = sum * sum / count;
  return between > 8 * (squares - between);
}

PALIMPSEST_HOST_DEVICE void merge_shifted(double before, double count, double pivot, double sum,
                                          double squares, double& mean, double& squared_deviations) {
  const double offset = sum / count;
  const double around_mean = squares - sum * offset;
  merge(before, count, pivot + offset, around_mean < 0 ? 0 : around_mean, mean, squared_deviations);
}

template <class T>
PALIMPSEST_HOST_DEVICE Pair<double> plane_shifted_sums(Block block, const T* x, T pivot) {
  Pair<double> sums{};
  with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
    sums = sum_plane<T, V>(
        block,
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
          const V d = load<V>(x + i) - pivot;
          return Pair<V>{d, d * d};
        },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { __builtin_prefetch(x + i); });
  });
  return sums;
}

template <class T>
void plane_moments(Block block, const T* x, double* mean, double* squares) {
  *mean = *squares = 0;
  double before = 0;
  for_plane_chunks(block, kMomentRun * 2 * lanes<T, Vector<T>>(), [&](Block chunk, int64_t at) {
    const int64_t samples = smaller(chunk.width, kPivotSamples);
    double sample_sum = 0;
    for (int64_t j = 0; j < samples; ++j) sample_sum += static_cast<double>(x[at + j]);
    const double count = static_cast<double>(chunk.rows * chunk.width);
    T pivot = static_cast<T>(sample_sum / static_cast<double>(samples));
    Pair<double> sums = plane_shifted_sums(chunk, x + at, pivot);
    if (is_far(count, sums.a, sums.b)) {
      pivot = static_cast<T>(pivot + sums.a / count);
      sums = plane_shifted_sums(chunk, x + at, pivot);
    }
    merge_shifted(before, count, static_cast<double>(pivot), sums.a, sums.b, *mean, *squares);
    before += count;
  });
}

template <class T>
PALIMPSEST_HOST_DEVICE void columns_shifted_sums(Block block, const T* x, const T* pivot, T* sum,
                                                 T* squares) {
  with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
    sum_columns<T, V>(
        block, sum, squares,
        [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
          const V d = load<V>(x + i) - load<V>(pivot + j);
          return Pair<V>{d, d * d};
        },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { __builtin_prefetch(x + i); });
  });
}

template <class T>
void columns_moments(Block block, const T* x, double* mean, double* squares) {
  T pivot[kMaxColumns], sum[kMaxColumns], square[kMaxColumns];
  for (int64_t j = 0; j < block.width; ++j) mean[j] = squares[j] = 0;
  double before = 0;
  for_column_chunks(block, [&](Block chunk, int64_t at) {
    const int64_t samples = smaller(chunk.rows, kPivotSamples);
    for (int64_t j = 0; j < block.width; ++j) pivot[j] = 0;
    for (int64_t row = 0; row < samples; ++row)
      for (int64_t j = 0; j < block.width; ++j)
        pivot[j] += x[at + row * block.stride + j] / static_cast<T>(samples);
    columns_shifted_sums(chunk, x + at, pivot, sum, square);
    const double count = static_cast<double>(chunk.rows);
    int far = 0;
    for (int64_t j = 0; j < block.width; ++j) far |= is_far(count, sum[j], square[j]);
    if (far) {
      for (int64_t j = 0; j < block.width; ++j) pivot[j] += sum[j] / static_cast<T>(count);
      columns_shifted_sums(chunk, x + at, pivot, sum, square);
    }
    for (int64_t j = 0; j < block.width; ++j)
      merge_shifted(before, count, pivot[j], sum[j], square[j], mean[j], squares[j]);
    before += count;
  });
}

// ---- Forward
// -------------------------------------------------------------------------------------------------------

// A per-channel argument: one value for all of a plane, one a column else.
template <class T, class V, bool kPlane>
class PerChannel {
 public:
  PALIMPSEST_HOST_DEVICE explicit PerChannel(const T* values)
      : values_(values), plane_(kPlane ? broadcast<V>(*values) : V{}) {}

  PALIMPSEST_HOST_DEVICE V at(int64_t column) const {
    if constexpr (kPlane)
      return plane_;
    else
      return load<V>(values_ + column);
  }

 private:
  const T* values_;
  V plane_;
};

template <class T, class V, bool kPlane, bool kKeep, class Act>
void apply_rows(Block block, Act act, const ApplyCoefficients<T>& k, const T* x, T* z, T* xhat,
                Destination to) {
  const PerChannel<T, V, kPlane> mean(k.mean), scale(k.scale), shift(k.shift), inv_std(k.inv_std),
      offset(k.offset);
  // A plane is in cache when this sweep begins; columns come from memory once more.
  const int64_t ahead = rows_ahead(block) * block.stride;
  map_rows<lanes<T, V>()>(
      block, z,
      [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
        if constexpr (!kPlane) __builtin_prefetch(x + i + ahead);
        const V centered = load<V>(x + i) - mean.at(j);
        Output<V> out{act.template forward<V>(centered * scale.at(j) + shift.at(j)), V{}};
        if constexpr (kKeep) out.xhat = centered * inv_std.at(j) + offset.at(j);
        return out;
      },
      [&](int64_t i, const Output<V>& out, bool aligned) PALIMPSEST_INLINE_LAMBDA {
        write(z + i, out.z, aligned, to);
        if constexpr (kKeep) store(xhat + i, out.xhat);
      });
}

template <class T, bool kPlane>
void apply(Block block, ActivationChoice activation, ApplyCoefficients<T> k, const T* x, T* z, T* xhat,
           Destination to) {
  dispatch_activation<T>(activation.kind, activation.param, [&](auto act) PALIMPSEST_INLINE_LAMBDA {
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      xhat ? apply_rows<T, V, kPlane, true>(block, act, k, x, z, xhat, to)
           : apply_rows<T, V, kPlane, false>(block, act, k, x, z, xhat, to);
    });
  });
  if (to == Destination::kPastCaches) fence();
}

// ---- Backward
// ------------------------------------------------------------------------------------------------------

template <class T, class V, From kFrom, class Act>
void plane_reduce_rows(Block block, Act act, const T* bias, const T* z, const T* xhat, const T* dz,
                       double* sum_dy, double* sum_dy_t) {
  *sum_dy = *sum_dy_t = 0;
  const V b = broadcast<V>(*bias);
  for_plane_chunks(
      block, kGradientRun * 2 * lanes<T, Vector<T>>(), [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
        const Pair<double> sums = sum_plane<T, V>(
            chunk,
            [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
              return times_second(gradient<kFrom>(act, z + at + i, xhat + at + i, dz + at + i, b));
            },
            [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
              __builtin_prefetch(z + at + i);
              __builtin_prefetch(dz + at + i);
              if constexpr (kFrom == From::kKept) __builtin_prefetch(xhat + at + i);
            });
        *sum_dy += sums.a;
        *sum_dy_t += sums.b;
      });
}

template <class T, class V, From kFrom, class Act>
void columns_reduce_rows(Block block, Act act, const T* bias, const T* z, const T* xhat, const T* dz,
                         double* sum_dy, double* sum_dy_t) {
  T sum[kMaxColumns], sum_t[kMaxColumns];
  for (int64_t j = 0; j < block.width; ++j) sum_dy[j] = sum_dy_t[j] = 0;
  for_column_chunks(block, [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    sum_columns<T, V>(
        chunk, sum, sum_t,
        [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
          return times_second(
              gradient<kFrom>(act, z + at + i, xhat + at + i, dz + at + i, load<V>(bias + j)));
        },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
          __builtin_prefetch(z + at + i);
          __builtin_prefetch(dz + at + i);
          if constexpr (kFrom == From::kKept) __builtin_prefetch(xhat + at + i);
        });
    for (int64_t j = 0; j < block.width; ++j) {
      sum_dy[j] += static_cast<double>(sum[j]);
      sum_dy_t[j] += static_cast<double>(sum_t[j]);
    }
  });
}

template <class T, bool kPlane>
void reduce(Block block, ActivationChoice activation, const T* bias, const T* z, const T* xhat, const T* dz,
            double* sum_dy, double* sum_dy_t) {
  dispatch_activation<T>(activation.kind, activation.param, [&](auto act) PALIMPSEST_INLINE_LAMBDA {
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      if constexpr (kPlane)
        xhat ? plane_reduce_rows<T, V, From::kKept>(block, act, bias, z, xhat, dz, sum_dy, sum_dy_t)
             : plane_reduce_rows<T, V, From::kOutput>(block, act, bias, z, z, dz, sum_dy, sum_dy_t);
      else
        xhat ? columns_reduce_rows<T, V, From::kKept>(block, act, bias, z, xhat, dz, sum_dy, sum_dy_t)
             : columns_reduce_rows<T, V, From::kOutput>(block, act, bias, z, z, dz, sum_dy, sum_dy_t);
    });
  });
}

template <class T, class V, bool kPlane, From kFrom, class Act>
void backward_rows(Block block, Act act, const BackwardCoefficients<T>& k, const T* z, const T* xhat,
                   const T* dz, T* dx, Destination to) {
  const PerChannel<T, V, kPlane> bias(k.bias), per_dy(k.per_dy), per_t(k.per_t), constant(k.constant);
  const int64_t ahead = rows_ahead(block) * block.stride;
  map_rows<lanes<T, V>()>(
      block, dx,
      [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
        if constexpr (!kPlane) {
          __builtin_prefetch(z + i + ahead);
          __builtin_prefetch(dz + i + ahead);
        }
        const Pair<V> g = gradient<kFrom>(act, z + i, xhat + i, dz + i, bias.at(j));
        if constexpr (kFrom == From::kNothing)
          return V(g.a * per_dy.at(j));
        else
          return V(g.a * per_dy.at(j) + (g.b * per_t.at(j) + constant.at(j)));
      },
      [&](int64_t i, V out, bool aligned) PALIMPSEST_INLINE_LAMBDA { write(dx + i, out, aligned, to); });
}

template <class T, bool kPlane>
void backward(Block block, ActivationChoice activation, BackwardCoefficients<T> k, const T* z, const T* xhat,
              const T* dz, T* dx, Destination to) {
  dispatch_activation<T>(activation.kind, activation.param, [&](auto act) PALIMPSEST_INLINE_LAMBDA {
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      xhat ? backward_rows<T, V, kPlane, From::kKept>(block, act, k, z, xhat, dz, dx, to)
           : backward_rows<T, V, kPlane, From::kOutput>(block, act, k, z, z, dz, dx, to);
    });
  });
  if (to == Destination::kPastCaches) fence();
}

template <class T, bool kPlane>
void backward_frozen(Block block, ActivationChoice activation, BackwardCoefficients<T> k, const T* z,
                     const T* dz, T* dx, Destination to) {
  dispatch_activation<T>(activation.kind, activation.param, [&](auto act) PALIMPSEST_INLINE_LAMBDA {
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      backward_rows<T, V, kPlane, From::kNothing>(block, act, k, z, z, dz, dx, to);
    });
  });
  if (to == Destination::kPastCaches) fence();
}

template <class T>
constexpr AbnKernels<T> kKernels = {
    {plane_moments<T>, apply<T, true>, reduce<T, true>, backward<T, true>, backward_frozen<T, true>},
    {columns_moments<T>, apply<T, false>, reduce<T, false>, backward<T, false>, backward_frozen<T, false>}};

}  // namespace

extern const AbnKernels<float> kAbnFloat = kKernels<float>;
extern const AbnKernels<double> kAbnDouble = kKernels<double>;

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
