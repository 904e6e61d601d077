#pragma once

// As vector.h: only for units that are compiled once per instruction set.

#include "palimpsest/kernels/cpu/abn/activation.h"
#include "palimpsest/kernels/cpu/abn/branch_bits.h"
#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace {

/// dy and t of the vector at offset i, column j. From_, Residual_: a From and a bool, or Constants of them.
template <class S, class V, bool kPlane, class Act, class From_, class Residual_>
class Gradient {
  using T = MathsOf<S>;

 public:
  PALIMPSEST_HOST_DEVICE Gradient(const Act& act, From_ from, Residual_ has_residual,
                                  const BackwardCoefficients<T>& k, const GradientTensors<S>& tensors)
      : act_(act),
        from_(from),
        has_residual_(has_residual),
        tensors_(tensors),
        center_(k.center),
        scale_(k.scale),
        shift_(k.shift) {}

  PALIMPSEST_HOST_DEVICE bool has_residual() const { return has_residual_; }
  PALIMPSEST_HOST_DEVICE bool has_y() const { return is_before(from_); }

  PALIMPSEST_HOST_DEVICE Pair<V> at(int64_t i, int64_t j) const {
    const V kept = load_as<V>(tensors_.kept + i), dz = load_as<V>(tensors_.dz + i);
    decltype(lanes_from_bits<T, V>(nullptr, 0)) rising{};
    if (from_ == From::kBranch)
      rising = lanes_from_bits<T, V>(tensors_.branch.bytes, tensors_.branch.first + i);
    const Recovered<V> from = act_.recover(from_, has_y() ? y_at(i, j) : kept, rising);
    V t = has_y() ? kept : from.y;
    if (has_residual() && !has_y()) t -= residual_at<V>(tensors_.residual, i);
    t -= center_.at(j);
    if (from_ == From::kNormalized) t *= scale_.at(j);
    return {dz * from.derivative, t};
  }

  /// act(y), by the formula of abn_apply.h.
  PALIMPSEST_HOST_DEVICE V z_at(int64_t i, int64_t j) const { return act_.forward(y_at(i, j)); }

  PALIMPSEST_HOST_DEVICE void prefetch(int64_t i) const {
    __builtin_prefetch(tensors_.kept + i);
    __builtin_prefetch(tensors_.dz + i);
    if (has_residual()) __builtin_prefetch(tensors_.residual.values + i);
  }

 private:
  /// What the activation was applied to.
  PALIMPSEST_HOST_DEVICE V y_at(int64_t i, int64_t j) const {
    V y = load_as<V>(tensors_.kept + i);
    if (from_ == From::kBefore) y = (y - center_.at(j)) * scale_.at(j) + shift_.at(j);
    if (has_residual()) y += residual_at<V>(tensors_.residual, i);
    return y;
  }

  // By value, as are gradients themselves: what a sweep writes cannot be part of them then, for the compiler.
  Act act_;
  From_ from_;
  Residual_ has_residual_;
  GradientTensors<S> tensors_;
  PerChannel<T, V, kPlane> center_, scale_, shift_;
};

/// Calls function(gradient) for the choice at hand.
template <class S, bool kPlane, class Function>
PALIMPSEST_HOST_DEVICE void with_gradient(Block block, ActivationChoice choice, From from,
                                          const BackwardCoefficients<MathsOf<S>>& k,
                                          const GradientTensors<S>& t, const Function& function) {
  using T = MathsOf<S>;
  const bool has_residual = t.residual.values != nullptr;
  const auto call = [&]<class V, class Act>(V, const Act& act, auto of,
                                            auto residual) PALIMPSEST_INLINE_LAMBDA {
    function(Gradient<S, V, kPlane, Act, decltype(of), decltype(residual)>(act, of, residual, k, t));
  };
  // Compiled for each choice are the sweeps that memory alone bounds. What else there is (an exponential,
  // form I, which is there to be compared with, rows shorter than a vector) looks at each vector for the
  // rest.
  if (block.width < lanes<T, Vector<T>>())
    call(T{}, any<S>(choice), from, has_residual);
  else if (is_straight<S>(choice, block.width) && from != From::kNormalized)
    with_constant<From::kOutput, From::kPreActivation, From::kBefore>(
        from, [&](auto of) PALIMPSEST_INLINE_LAMBDA {
          with_constant<true, false>(has_residual, [&](auto residual) PALIMPSEST_INLINE_LAMBDA {
            call(Vector<T>{}, straight<T>(choice), of, residual);
          });
        });
  else
    with_constant<From::kOutput, From::kNormalized, From::kPreActivation, From::kBefore, From::kBranch>(
        from, [&](auto of) PALIMPSEST_INLINE_LAMBDA { call(Vector<T>{}, any<S>(choice), of, has_residual); });
}

template <class V>
PALIMPSEST_HOST_DEVICE Pair<V> times_second(Pair<V> p) {
  return {p.a, p.a * p.b};
}

template <class S, class V, class... Choices>
void plane_reduce_rows(Block block, Gradient<S, V, true, Choices...> gradient, double* sum_dy,
                       double* sum_dy_t) {
  using T = MathsOf<S>;
  *sum_dy = *sum_dy_t = 0;
  for_plane_chunks(
      block, kGradientRun * 2 * lanes<T, Vector<T>>(), [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
        const Pair<double> sums = sum_plane<T, V>(
            chunk, [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { return times_second(gradient.at(at + i, 0)); },
            [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { gradient.prefetch(at + i); });
        *sum_dy += sums.a;
        *sum_dy_t += sums.b;
      });
}

template <class S, class V, class... Choices>
void columns_reduce_rows(Block block, Gradient<S, V, false, Choices...> gradient, double* sum_dy,
                         double* sum_dy_t) {
  using T = MathsOf<S>;
  T sum[kMaxColumns], sum_t[kMaxColumns];
  const int64_t channels = block.plane > 0 ? block.width / block.plane : block.width;
  clear_columns(channels, sum_dy, sum_dy_t);
  for_column_chunks(block, [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    sum_columns<T, V>(
        chunk, sum, sum_t,
        [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA { return times_second(gradient.at(at + i, j)); },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { gradient.prefetch(at + i); });
    add_to_channels(block, sum, sum_t, sum_dy, sum_dy_t);
  });
}

template <class S, bool kPlane>
void reduce(Block block, ActivationChoice activation, From from, const BackwardCoefficients<MathsOf<S>>& k,
            const GradientTensors<S>& t, double* sum_dy, double* sum_dy_t) {
  with_gradient<S, kPlane>(block, activation, from, k, t, [&](const auto& gradient) {
    if constexpr (kPlane)
      plane_reduce_rows(block, gradient, sum_dy, sum_dy_t);
    else
      columns_reduce_rows(block, gradient, sum_dy, sum_dy_t);
  });
}

template <class V>
struct Propagated {
  V dx, dresidual, z;
};

template <class S, class V, bool kPlane, class... Choices>
void backward_rows(Block block, Gradient<S, V, kPlane, Choices...> gradient, bool frozen,
                   const BackwardCoefficients<MathsOf<S>>& k, const Residual<S>& residual,
                   const BackwardOutputs<S>& out, Destination to) {
  using T = MathsOf<S>;
  const PerChannel<T, V, kPlane> per_dy(k.per_dy), per_t(k.per_t), constant(k.constant);
  const int64_t ahead = values_ahead(block);
  const bool short_rows = block.width < kLongRow;
  map_rows<lanes<T, V>()>(
      block, out.dx,
      [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
        if constexpr (!kPlane) gradient.prefetch(i + ahead);
        // Each short row of dx is a miss of its own, and stores wait for it: 7x7: 2.9 -> 2.5 ms.
        if constexpr (kPlane)
          if (short_rows && to == Destination::kCaches) __builtin_prefetch(out.dx + i + kNeighbours, 1);
        const Pair<V> g = gradient.at(i, j);
        Propagated<V> result{};
        // Frozen statistics know nothing of t, which may be infinite. One formula for both: two, and the
        // compiler would round them differently in the copies that it makes of this loop.
        const V t_or_none = frozen ? V{} : g.b;
        result.dx = g.a * per_dy.at(j) + (t_or_none * per_t.at(j) + constant.at(j));
        if (gradient.has_residual()) {
          const V r = load_as<V>(residual.values + i);
          result.dresidual = residual.relu ? (r > V{} ? g.a : V{}) : g.a;
        }
        if (gradient.has_y() && out.z) result.z = gradient.z_at(i, j);
        return result;
      },
      [&](int64_t i, const Propagated<V>& result, bool aligned) PALIMPSEST_INLINE_LAMBDA {
        store_as(out.dx + i, result.dx, aligned && to == Destination::kPastCaches);
        if (gradient.has_residual() && out.dresidual) store_as(out.dresidual + i, result.dresidual, false);
        if (gradient.has_y() && out.z) store_as(out.z + i, result.z, false);
      });
}

template <class S, bool kPlane>
void backward(Block block, ActivationChoice activation, From from, bool frozen,
              const BackwardCoefficients<MathsOf<S>>& k, const GradientTensors<S>& t,
              const BackwardOutputs<S>& out, Destination to) {
  with_gradient<S, kPlane>(block, activation, from, k, t, [&](const auto& gradient) {
    backward_rows(block, gradient, frozen, k, t.residual, out, to);
  });
  if (to == Destination::kPastCaches) fence();
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
