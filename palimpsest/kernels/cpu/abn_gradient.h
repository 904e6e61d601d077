#pragma once

// As vector.h: only for units that are compiled once per instruction set.

#include "palimpsest/kernels/cpu/abn_kernels.h"
#include "palimpsest/kernels/cpu/any_activation.h"
#include "palimpsest/kernels/cpu/branch_bits.h"
#include "palimpsest/kernels/cpu/storage.h"
#include "palimpsest/kernels/cpu/sweep.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace {

/// dy and t of the vector at offset i, column j.
template <class S, class V, bool kPlane, From kFrom, bool kResidual>
class Gradient {
  using T = MathsOf<S>;

 public:
  /// Whether what was kept lies before the activation.
  static constexpr bool kHasY = kFrom == From::kBefore || kFrom == From::kScaled;

  PALIMPSEST_HOST_DEVICE Gradient(const BackwardCoefficients<T>& k, const GradientTensors<S>& tensors)
      : tensors_(tensors), center_(k.center), scale_(k.scale), shift_(k.shift) {}

  template <class Act>
  PALIMPSEST_HOST_DEVICE Pair<V> at(const Act& act, int64_t i, int64_t j) const {
    const V kept = load_as<V>(tensors_.kept + i), dz = load_as<V>(tensors_.dz + i);
    V residual{};
    if constexpr (kResidual) residual = residual_at<V>(tensors_.residual, i);
    if constexpr (kHasY) {
      return {dz * act.template derivative_at<V>(y_at(i, j)), kept - center_.at(j)};
    } else if constexpr (kFrom == From::kBranch) {
      const BranchBits<const uint8_t>& branch = tensors_.branch;
      const Recovered<V> from = act.recover(kept, lanes_from_bits<T, V>(branch.bytes, branch.first + i));
      V t = from.y;
      if constexpr (kResidual) t -= residual;
      return {dz * from.derivative, t - center_.at(j)};
    } else {
      V t = act.template inverse<V>(kept);
      if constexpr (kResidual) t -= residual;
      t -= center_.at(j);
      if constexpr (kFrom == From::kNormalized) t *= scale_.at(j);
      return {dz * act.template derivative<V>(kept), t};
    }
  }

  /// What the activation is applied to, by the formula of abn_apply.h.
  PALIMPSEST_HOST_DEVICE V y_at(int64_t i, int64_t j) const {
    V y = load_as<V>(tensors_.kept + i);
    if constexpr (kFrom == From::kBefore) y = (y - center_.at(j)) * scale_.at(j) + shift_.at(j);
    if constexpr (kResidual) y += residual_at<V>(tensors_.residual, i);
    return y;
  }

  PALIMPSEST_HOST_DEVICE void prefetch(int64_t i) const {
    __builtin_prefetch(tensors_.kept + i);
    __builtin_prefetch(tensors_.dz + i);
    if constexpr (kResidual) __builtin_prefetch(tensors_.residual.values + i);
  }

 private:
  const GradientTensors<S>& tensors_;
  PerChannel<T, V, kPlane> center_, scale_, shift_;
};

/// Calls function(activation, V{}, Constant<from>, Constant<residual>) for the choice at hand.
template <class S, class Function>
PALIMPSEST_HOST_DEVICE void with_gradient(ActivationChoice activation, From from, bool residual,
                                          int64_t width, const Function& function) {
  const auto choose = [&]<From kFrom>(Constant<kFrom> chosen) PALIMPSEST_INLINE_LAMBDA {
    with_activation<S, !(kFrom == From::kBefore || kFrom == From::kScaled)>(
        activation, width, [&](const auto& act, auto v) PALIMPSEST_INLINE_LAMBDA {
          residual ? function(act, v, chosen, Constant<true>{}) : function(act, v, chosen, Constant<false>{});
        });
  };
  if (from == From::kBranch)
    with_any_activation<S>(activation, width, [&](const auto& act, auto v) PALIMPSEST_INLINE_LAMBDA {
      constexpr Constant<From::kBranch> kChosen;
      residual ? function(act, v, kChosen, Constant<true>{}) : function(act, v, kChosen, Constant<false>{});
    });
  if (from == From::kOutput) choose(Constant<From::kOutput>{});
  if (from == From::kNormalized) choose(Constant<From::kNormalized>{});
  if (from == From::kScaled) choose(Constant<From::kScaled>{});
  if (from == From::kBefore) choose(Constant<From::kBefore>{});
}

template <class V>
PALIMPSEST_HOST_DEVICE Pair<V> times_second(Pair<V> p) {
  return {p.a, p.a * p.b};
}

template <class S, class V, From kFrom, bool kResidual, class Act>
void plane_reduce_rows(Block block, const Act& act, const BackwardCoefficients<MathsOf<S>>& k,
                       const GradientTensors<S>& t, double* sum_dy, double* sum_dy_t) {
  using T = MathsOf<S>;
  *sum_dy = *sum_dy_t = 0;
  const Gradient<S, V, true, kFrom, kResidual> gradient(k, t);
  for_plane_chunks(
      block, kGradientRun * 2 * lanes<T, Vector<T>>(), [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
        const Pair<double> sums = sum_plane<T, V>(
            chunk,
            [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { return times_second(gradient.at(act, at + i, 0)); },
            [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { gradient.prefetch(at + i); });
        *sum_dy += sums.a;
        *sum_dy_t += sums.b;
      });
}

template <class S, class V, From kFrom, bool kResidual, class Act>
void columns_reduce_rows(Block block, const Act& act, const BackwardCoefficients<MathsOf<S>>& k,
                         const GradientTensors<S>& t, double* sum_dy, double* sum_dy_t) {
  using T = MathsOf<S>;
  T sum[kMaxColumns], sum_t[kMaxColumns];
  const int64_t channels = block.plane > 0 ? block.width / block.plane : block.width;
  clear_columns(channels, sum_dy, sum_dy_t);
  const Gradient<S, V, false, kFrom, kResidual> gradient(k, t);
  for_column_chunks(block, [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    sum_columns<T, V>(
        chunk, sum, sum_t,
        [&](int64_t i, int64_t j)
            PALIMPSEST_INLINE_LAMBDA { return times_second(gradient.at(act, at + i, j)); },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { gradient.prefetch(at + i); });
    add_to_channels(block, sum, sum_t, sum_dy, sum_dy_t);
  });
}

template <class S, bool kPlane>
void reduce(Block block, ActivationChoice activation, From from, const BackwardCoefficients<MathsOf<S>>& k,
            const GradientTensors<S>& t, double* sum_dy, double* sum_dy_t) {
  with_gradient<S>(activation, from, t.residual.values != nullptr, block.width,
                   [&]<class V, From kFrom, bool kResidual>(const auto& act, V, Constant<kFrom>,
                                                            Constant<kResidual>) PALIMPSEST_INLINE_LAMBDA {
                     if constexpr (kPlane)
                       plane_reduce_rows<S, V, kFrom, kResidual>(block, act, k, t, sum_dy, sum_dy_t);
                     else
                       columns_reduce_rows<S, V, kFrom, kResidual>(block, act, k, t, sum_dy, sum_dy_t);
                   });
}

template <class V>
struct Propagated {
  V dx, dresidual, z;
};

template <class S, class V, bool kPlane, From kFrom, bool kResidual, class Act>
void backward_rows(Block block, const Act& act, bool frozen, const BackwardCoefficients<MathsOf<S>>& k,
                   const GradientTensors<S>& t, const BackwardOutputs<S>& out, Destination to) {
  using T = MathsOf<S>;
  using Gradients = Gradient<S, V, kPlane, kFrom, kResidual>;
  const Gradients gradient(k, t);
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
        const Pair<V> g = gradient.at(act, i, j);
        Propagated<V> result{};
        // Frozen statistics know nothing of t, which may be infinite. One formula for both: two, and the
        // compiler would round them differently in the copies that it makes of this loop.
        const V t_or_none = frozen ? V{} : g.b;
        result.dx = g.a * per_dy.at(j) + (t_or_none * per_t.at(j) + constant.at(j));
        if constexpr (kResidual) {
          const V r = load_as<V>(t.residual.values + i);
          result.dresidual = t.residual.relu ? (r > V{} ? g.a : V{}) : g.a;
        }
        if constexpr (Gradients::kHasY)
          if (out.z) result.z = act.template forward<V>(gradient.y_at(i, j));
        return result;
      },
      [&](int64_t i, const Propagated<V>& result, bool aligned) PALIMPSEST_INLINE_LAMBDA {
        store_as(out.dx + i, result.dx, aligned && to == Destination::kPastCaches);
        if constexpr (kResidual)
          if (out.dresidual) store_as(out.dresidual + i, result.dresidual, false);
        if constexpr (Gradients::kHasY)
          if (out.z) store_as(out.z + i, result.z, false);
      });
}

template <class S, bool kPlane>
void backward(Block block, ActivationChoice activation, From from, bool frozen,
              const BackwardCoefficients<MathsOf<S>>& k, const GradientTensors<S>& t,
              const BackwardOutputs<S>& out, Destination to) {
  with_gradient<S>(activation, from, t.residual.values != nullptr, block.width,
                   [&]<class V, From kFrom, bool kResidual>(const auto& act, V, Constant<kFrom>,
                                                            Constant<kResidual>) PALIMPSEST_INLINE_LAMBDA {
                     backward_rows<S, V, kPlane, kFrom, kResidual>(block, act, frozen, k, t, out, to);
                   });
  if (to == Destination::kPastCaches) fence();
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
