#pragma once

// Only for units of one instruction set, as simd/vector.h.

#include "palimpsest/kernels/cpu/abn/activation.h"
#include "palimpsest/kernels/cpu/abn/branch_bits.h"
#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {
namespace {

template <class S, bool kPlane>
using BackwardArguments = BackwardCoefficients<accumulate_t<S>, Argument<S, kPlane>>;

/// dy and t of one vector. Saved_, Residual_: a Saved and a bool, or Constants of them.
template <class S, class V, bool kPlane, class Act, class Saved_, class Residual_>
class Gradient {
  using T = accumulate_t<S>;
  static constexpr bool kMayHaveBits = __is_same(Saved_, Saved);
  static constexpr bool kStraightOutput =
      __is_same(Act, StraightActivation<T>) && __is_same(Saved_, Constant<Saved::kOutput>);

 public:
  /// The bits lie in the order of the values.
  static constexpr Order kOrder = kMayHaveBits ? Order::kHalves : kAnyOrder<S>;

  /// Whether the input gradient is compiled twice, for frozen statistics and for others: it is for a layer in place, to
  /// save an instruction per vector.
  static constexpr bool kCompiledPerFrozen = kStraightOutput;

  /// Whether dx_at may be used.
  static constexpr bool kHasDx = kStraightOutput && __is_same(Residual_, Constant<false>);

  PALIMPSEST_HOST_DEVICE Gradient(const Act& act, Saved_ saved, Residual_ has_residual,
                                  const BackwardArguments<S, kPlane>& coefficients,
                                  const GradientTensors<S>& tensors)
      : act_(act),
        saved_(saved),
        has_residual_(has_residual),
        tensors_(tensors),
        affine_(coefficients.center, coefficients.scale, coefficients.shift) {}

  PALIMPSEST_HOST_DEVICE bool has_residual() const { return has_residual_; }
  PALIMPSEST_HOST_DEVICE bool has_y() const { return is_before_activation(saved_); }

  PALIMPSEST_HOST_DEVICE const S* dz() const { return tensors_.dz; }

  /// dy and dy * t.
  template <class Where>
  PALIMPSEST_HOST_DEVICE Pair<V> products_at(Where place) const {
    if constexpr (kHasDx) {
      // dy * t = dz * slope * (y - center), where slope * y = z.
      const V z = load_at<V>(tensors_.saved_values, place), dz = load_at<V>(tensors_.dz, place);
      const V slope = act_.times_slope(z, broadcast<V>(T(1)));
      return {dz * slope, dz * (z - slope * affine_.center(place))};
    } else {
      const Pair<V> dy_t = at<true>(place);
      return {dy_t.a, dy_t.a * dy_t.b};
    }
  }

  /// dy, and t as kernels/formulas/abn_formulas.h has it; if not kCentered, its center is not subtracted.
  template <bool kCentered, class Where>
  PALIMPSEST_HOST_DEVICE Pair<V> at(Where place) const {
    const V saved_value = load_at<V>(tensors_.saved_values, place), dz = load_at<V>(tensors_.dz, place);
    decltype(lanes_from_bits<T, V>(nullptr, 0)) rising{};
    if constexpr (kMayHaveBits)
      if (saved_ == Saved::kOutputBit)
        rising = lanes_from_bits<T, V>(tensors_.branch.bytes,
                                       tensors_.branch.first + place.template own<T, V>().offset);
    const auto from = act_.recover(saved_, has_y() ? y_at(place) : saved_value, rising);
    V t = has_y() ? saved_value : from.y;
    if (has_residual() && !has_y()) t -= residual_at<V>(tensors_.residual, place);
    if constexpr (kCentered) t -= affine_.center(place);
    if (saved_ == Saved::kOutputForm1) t *= affine_.scale(place);
    return {from.dy(dz), t};
  }

  /// dy * per_dy + t * per_t + constant, with t as in at<kCentered>, or 0 if `keep_t` is 0: for the layer in place, in
  /// fewer steps than from dy and t. (32, 512, 28, 28) in bf16: backward 4.2 -> 3.8 ms.
  template <bool kCentered, class Where>
  PALIMPSEST_HOST_DEVICE V dx_at(Where place, typename Bits<T>::type keep_t, V per_dy, V per_t,
                                 V constant) const {
    const V z = load_at<V>(tensors_.saved_values, place), dz = load_at<V>(tensors_.dz, place);
    const V of_t = kCentered ? keep_if<T>(keep_t, V(act_.inverse(z) - affine_.center(place))) * per_t
                             : keep_if<T>(keep_t, z) * act_.over_slope(z, per_t);
    return dz * act_.times_slope(z, per_dy) + (of_t + constant);
  }

  /// act(y), by the formula of apply.h.
  template <class Where>
  PALIMPSEST_HOST_DEVICE V z_at(Where place) const {
    return act_.forward(y_at(place));
  }

  PALIMPSEST_HOST_DEVICE void prefetch(int64_t i) const {
    fetch_ahead(tensors_.saved_values + i);
    fetch_ahead(tensors_.dz + i);
    if (has_residual()) fetch_ahead(tensors_.residual.values + i);
  }

 private:
  /// y, if has_y.
  template <class Where>
  PALIMPSEST_HOST_DEVICE V y_at(Where place) const {
    V y = load_at<V>(tensors_.saved_values, place);
    if (saved_ == Saved::kInput) y = affine_.at(y, place);
    if (has_residual()) y += residual_at<V>(tensors_.residual, place);
    return y;
  }

  // Held by value, as gradients are: the compiler then knows that no store of a sweep changes them.
  Act act_;
  Saved_ saved_;
  Residual_ has_residual_;
  GradientTensors<S> tensors_;
  Affine<S, V, kPlane> affine_;
};

/// Returns whether gradients of rows of `width` values are compiled for StraightActivation and for `saved`. If so,
/// their order is kAnyOrder, on which strips rely (gradient_in_order).
template <class S>
PALIMPSEST_HOST_DEVICE bool is_straight_gradient(ActivationChoice choice, Saved saved, int64_t width) {
  return is_straight<S>(choice, width) && saved != Saved::kOutputForm1;
}

/// Calls function(gradient) for these choices.
template <class S, bool kPlane, class Function>
PALIMPSEST_HOST_DEVICE void with_gradient(Block block, ActivationChoice choice, Saved saved,
                                          const BackwardArguments<S, kPlane>& coefficients,
                                          const GradientTensors<S>& tensors, const Function& function) {
  using T = accumulate_t<S>;
  const bool has_residual = tensors.residual.values != nullptr;
  const auto call = [&]<class V, class Act>(V, const Act& act, auto kind, auto residual)
                        PALIMPSEST_INLINE_LAMBDA {
                          function(Gradient<S, V, kPlane, Act, decltype(kind), decltype(residual)>(
                              act, kind, residual, coefficients, tensors));
                        };
  // Sweeps that are bound by memory are compiled for each choice. Those of InlineActivations are compiled for kSaved,
  // without a residual. The others test their choices for each vector: copies of them for each kind of saved values
  // would take a third of the compiler's time.
  if (block.width < lanes<T, Vector<T>>()) return call(T{}, any<S>(choice), saved, has_residual);
  if (is_straight_gradient<S>(choice, saved, block.width))
    return with_constant<Saved::kOutput, Saved::kPreActivation, Saved::kInput>(
        saved, [&](auto kind) PALIMPSEST_INLINE_LAMBDA {
          with_constant<true, false>(has_residual, [&](auto residual) PALIMPSEST_INLINE_LAMBDA {
            call(Vector<T>{}, straight<T>(choice), kind, residual);
          });
        });
  const auto inlined = [&]<class Act>(const Act& act) PALIMPSEST_INLINE_LAMBDA {
    if (saved == Act::kSaved) call(Vector<T>{}, act, Constant<Act::kSaved>{}, Constant<false>{});
    return saved == Act::kSaved;
  };
  if (!has_residual && with_inline_activation<S>(choice, block.width, inlined)) return;
  call(Vector<T>{}, any<S>(choice), saved, has_residual);
}

template <class S, class V, class... Choices>
PALIMPSEST_HOST_DEVICE void plane_reduce_rows(Block block, Gradient<S, V, true, Choices...> gradient,
                                              double* sum_dy, double* sum_dy_t) {
  using T = accumulate_t<S>;
  const PlaneAhead<S> ahead(block);
  *sum_dy = *sum_dy_t = 0;
  for_plane_chunks(
      block, kGradientRun * 2 * lanes<T, Vector<T>>(), [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
        const Pair<double> sums = sum_plane<S, V, decltype(gradient)::kOrder>(
            chunk, [&](auto place) PALIMPSEST_INLINE_LAMBDA { return gradient.products_at(place.from(at)); },
            [&](int64_t row, int64_t j)
                PALIMPSEST_INLINE_LAMBDA { gradient.prefetch(at + row + j + ahead.from(at + row)); });
        *sum_dy += sums.a;
        *sum_dy_t += sums.b;
      });
}

template <class S, class V, class... Choices>
void columns_reduce_rows(Block block, Gradient<S, V, false, Choices...> gradient, double* sum_dy,
                         double* sum_dy_t) {
  using T = accumulate_t<S>;
  alignas(kLineBytes) T sum[kMaxColumns], sum_t[kMaxColumns];
  const int64_t channels = block.plane > 0 ? block.width / block.plane : block.width;
  clear_columns(channels, sum_dy, sum_dy_t);
  for_column_chunks<S>(block, [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    sum_columns<S, V, decltype(gradient)::kOrder>(
        chunk, sum, sum_t,
        [&](auto place) PALIMPSEST_INLINE_LAMBDA { return gradient.products_at(place.from(at)); },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { gradient.prefetch(at + i); });
    add_to_channels(block, sum, sum_t, sum_dy, sum_dy_t);
  });
}

template <class S, bool kPlane>
void reduce(Block block, ActivationChoice activation, Saved saved,
            const BackwardArguments<S, kPlane>& coefficients, const GradientTensors<S>& tensors,
            double* sum_dy, double* sum_dy_t) {
  with_gradient<S, kPlane>(block, activation, saved, coefficients, tensors,
                           [&](const auto& gradient) PALIMPSEST_INLINE_LAMBDA {
                             if constexpr (kPlane)
                               plane_reduce_rows(block, gradient, sum_dy, sum_dy_t);
                             else
                               columns_reduce_rows(block, gradient, sum_dy, sum_dy_t);
                           });
}

template <class V>
struct InputGradient {
  V dx, dresidual, z;
};

/// Frozen: a bool, or a Constant of it.
template <class S, class V, bool kPlane, class Frozen, class... Choices>
PALIMPSEST_HOST_DEVICE void backward_rows(Block block, Gradient<S, V, kPlane, Choices...> gradient,
                                          Frozen frozen, const BackwardArguments<S, kPlane>& coefficients,
                                          Residual<S> residual, BackwardOutputs<S> out, Stores stores) {
  using T = accumulate_t<S>;
  using G = Gradient<S, V, kPlane, Choices...>;
  constexpr bool kCentered = !kIs16Bit<S>;
  const PerChannel<T, V, kPlane> per_dy(coefficients.per_dy), per_t(coefficients.per_t),
      constant(coefficients.constant);
  const int64_t ahead = kPlane ? block.next : values_ahead<S>(block);
  const bool dx_streams = stores == Stores::kStreaming;
  const bool dresidual_streams = gradient.has_residual() && out.dresidual_stores == Stores::kStreaming;
  // Each short row of dx is a cache miss, for which stores wait: 7x7, 2.9 -> 2.5 ms. A sweep that has no use for that
  // prefetch asks for the line that it is at, which costs less than a test.
  const S* const soon_written =
      dx_streams ? gradient.dz() : out.dx + (block.width < kLongRow ? kNeighbours : 0);
  const typename Bits<T>::type unless_frozen = frozen ? 0 : -1;
  map_rows<G::kOrder, V, InputGradient<V>, /*kFromEven=*/!kPlane>(
      block, dresidual_streams ? out.dresidual : out.dx, dresidual_streams ? Stores::kStreaming : stores,
      [&]<Order kOrder, int kPart>(Place<kOrder, kPart> place, InputGradient<V>& result)
          PALIMPSEST_INLINE_LAMBDA {
            if constexpr (kPart == 0) gradient.prefetch(place.offset + ahead);
            if constexpr (kPlane && kPart == 0) __builtin_prefetch(soon_written + place.offset, 1);
            // With frozen statistics t has no effect; it may be infinite. Both cases use one formula: the
            // compiler would round two formulas differently in the copies that it makes of this loop.
            if constexpr (G::kHasDx) {
              result.dx = gradient.template dx_at<kCentered>(place, unless_frozen, per_dy.at(place),
                                                             per_t.at(place), constant.at(place));
            } else {
              const Pair<V> dy_t = gradient.template at<kCentered>(place);
              const V t = keep_if<T>(unless_frozen, dy_t.b);
              result.dx = dy_t.a * per_dy.at(place) + (t * per_t.at(place) + constant.at(place));
              if (gradient.has_residual()) {
                const V r = load_at<V>(residual.values, place);
                result.dresidual = residual.relu ? (r <= V{} ? V{} : dy_t.a) : dy_t.a;
              }
            }
            if (gradient.has_y() && out.z) result.z = gradient.z_at(place);
          },
      [&](int64_t i, bool streaming, const auto&... result) PALIMPSEST_INLINE_LAMBDA {
        constexpr Order kOrder = G::kOrder;
        // Without a residual `streaming` alone decides: it is a constant.
        store_step<kOrder>(out.dx + i, streaming && (!dresidual_streams || dx_streams), result.dx...);
        if (gradient.has_residual() && out.dresidual)
          store_step<kOrder>(out.dresidual + i, streaming && dresidual_streams, result.dresidual...);
        if (gradient.has_y() && out.z) store_step<kOrder>(out.z + i, false, result.z...);
      });
}

template <class S, bool kPlane>
void backward(Block block, ActivationChoice activation, Saved saved, bool frozen,
              const BackwardArguments<S, kPlane>& coefficients, const GradientTensors<S>& tensors,
              const BackwardOutputs<S>& out, Stores stores) {
  with_gradient<S, kPlane>(block, activation, saved, coefficients, tensors,
                           [&]<class G>(const G& gradient) PALIMPSEST_INLINE_LAMBDA {
                             const auto run = [&](auto is_frozen) PALIMPSEST_INLINE_LAMBDA {
                               backward_rows(block, gradient, is_frozen, coefficients, tensors.residual, out,
                                             stores);
                             };
                             if constexpr (G::kCompiledPerFrozen)
                               with_constant<true, false>(frozen, run);
                             else
                               run(frozen);
                           });
  if (stores == Stores::kStreaming || out.dresidual_stores == Stores::kStreaming) streaming_fence();
}

/// Whether a gradient reads scale or shift (Gradient).
constexpr bool reads_affine(Saved saved) {
  return saved == Saved::kInput || saved == Saved::kOutputForm1;
}

/// reduce over columns, with `argument` as in apply_by_column.
template <class S, class MakeArgument>
PALIMPSEST_HOST_DEVICE void reduce_by_column(Block block, ActivationChoice activation, Saved saved,
                                             const BackwardCoefficients<accumulate_t<S>>& of_channels,
                                             const GradientTensors<S>& tensors, double* sum_dy,
                                             double* sum_dy_t, const MakeArgument& argument) {
  const bool affine = reads_affine(saved);
  const auto center = argument(of_channels.center, true), scale = argument(of_channels.scale, affine),
             shift = argument(of_channels.shift, affine);
  reduce<S, false>(block, activation, saved, {center, scale, shift, {}, {}, {}}, tensors, sum_dy, sum_dy_t);
}

/// backward over columns, with `argument` as in apply_by_column.
template <class S, class MakeArgument>
PALIMPSEST_HOST_DEVICE void backward_by_column(Block block, ActivationChoice activation, Saved saved,
                                               bool frozen,
                                               const BackwardCoefficients<accumulate_t<S>>& of_channels,
                                               const GradientTensors<S>& tensors,
                                               const BackwardOutputs<S>& out, Stores stores,
                                               const MakeArgument& argument) {
  const bool affine = reads_affine(saved);
  const auto center = argument(of_channels.center, !kIs16Bit<S>), scale = argument(of_channels.scale, affine),
             shift = argument(of_channels.shift, affine), per_dy = argument(of_channels.per_dy, true),
             per_t = argument(of_channels.per_t, true), constant = argument(of_channels.constant, true);
  backward<S, false>(block, activation, saved, frozen, {center, scale, shift, per_dy, per_t, constant},
                     tensors, out, stores);
}

template <class S>
void columns_reduce(Block block, ActivationChoice activation, Saved saved,
                    const BackwardCoefficients<accumulate_t<S>>& coefficients,
                    const GradientTensors<S>& tensors, double* sum_dy, double* sum_dy_t) {
  reduce_by_column(block, activation, saved, coefficients, tensors, sum_dy, sum_dy_t,
                   column_arguments<S>(block));
}

template <class S>
void columns_backward(Block block, ActivationChoice activation, Saved saved, bool frozen,
                      const BackwardCoefficients<accumulate_t<S>>& coefficients,
                      const GradientTensors<S>& tensors, const BackwardOutputs<S>& out, Stores stores) {
  backward_by_column(block, activation, saved, frozen, coefficients, tensors, out, stores,
                     column_arguments<S>(block));
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
