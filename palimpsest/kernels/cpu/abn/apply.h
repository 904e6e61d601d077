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
using ApplyArguments = ApplyCoefficients<accumulate_t<S>, Argument<S, kPlane>>;

template <class V>
struct Applied {
  V z, saved_value;
};

/// Saved_, Residual_: a Saved and a bool, or Constants of them.
template <class S, class V, bool kPlane, class Act, class Saved_, class Residual_>
void apply_rows(Block block, const Act& act, Saved_ saved, Residual_ has_residual,
                const ApplyArguments<S, kPlane>& coefficients, const ApplyTensors<S>& tensors,
                Stores stores) {
  using T = accumulate_t<S>;
  const Affine<S, V, kPlane> affine(coefficients.mean, coefficients.scale, coefficients.shift);
  const PerChannel<T, V, kPlane> weight(coefficients.weight), bias(coefficients.bias);
  // 0 asks for the line that is read, which costs less than a test.
  const int64_t ahead = kPlane ? block.next : values_ahead<S>(block);
  // Copies: no store of the sweep can change them.
  const ApplyTensors<S> t = tensors;
  const Act activation = act;
  map_rows<kAnyOrder<S>, V, Applied<V>, /*kFromEven=*/!kPlane>(
      block, t.z, stores,
      [&]<Order kOrder, int kPart>(Place<kOrder, kPart> place, Applied<V>& out) PALIMPSEST_INLINE_LAMBDA {
        if constexpr (kPart == 0) {
          fetch_ahead(t.x + place.offset + ahead);
          if (has_residual) fetch_ahead(t.residual.values + place.offset + ahead);
        }
        V y = affine.at(load_at<V>(t.x, place), place);
        // z comes from the rounded value, so that it can be recomputed bit for bit.
        if (saves_aside(saved)) y = out.saved_value = as_stored<S>(y);
        if (saved == Saved::kNormalized) y = y * weight.at(place) + bias.at(place);
        if (has_residual) y += residual_at<V>(t.residual, place);
        out.z = activation.template forward<V>(y);
      },
      [&](int64_t i, bool streaming, const auto&... out) PALIMPSEST_INLINE_LAMBDA {
        constexpr Order kOrder = kAnyOrder<S>;
        store_step<kOrder>(t.z + i, streaming, out.z...);
        if (saves_aside(saved)) store_step<kOrder>(t.saved_values + i, false, out.saved_value...);
      });
}

/// Stores the branch of each y of the block.
template <class S, class V, bool kPlane>
void branch_rows(Block block, accumulate_t<S> minimum, const ApplyArguments<S, kPlane>& coefficients,
                 const ApplyTensors<S>& tensors) {
  using T = accumulate_t<S>;
  constexpr int64_t kLanes = lanes<T, V>();
  const Affine<S, V, kPlane> affine(coefficients.mean, coefficients.scale, coefficients.shift);
  const auto rising = [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
    const Place<Order::kHalves, 0> place{i, j};
    V y = affine.at(load_at<V>(tensors.x, place), place);
    if (tensors.residual.values) y += residual_at<V>(tensors.residual, place);
    return lane_bits<T>(y > minimum);
  };
  const int64_t rest = block.width % kLanes, whole = block.width - rest;
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t at = row * block.stride;
    BitWriter writer(tensors.branch.bytes, tensors.branch.first + at);
    for (int64_t j = 0; j < whole; j += kLanes) writer.append(rising(at + j, j), kLanes);
    if (rest > 0) {  // the vector that ends the row, without its lanes that were written
      const int64_t last = block.width - kLanes;
      writer.append(rising(at + last, last) >> (kLanes - rest), static_cast<uint32_t>(rest));
    }
    writer.finish();
  }
}

/// Writes both bits and z, chunk by chunk: x, which z may replace, is read from memory once.
template <class S, bool kPlane>
void apply_branches(Block block, ActivationChoice activation, const ApplyArguments<S, kPlane>& coefficients,
                    const ApplyTensors<S>& tensors, Stores stores) {
  using T = accumulate_t<S>;
  constexpr int64_t kMost = 8192;  // 32 KiB of f32
  const T minimum = minimum_at<T>(activation.kind);
  const Residual<S>& residual = tensors.residual;
  const auto chunk = [&](Block part, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    const ApplyTensors<S> from{tensors.x + at,
                               {residual.values ? residual.values + at : nullptr, residual.relu},
                               tensors.z + at,
                               nullptr,
                               {tensors.branch.bytes, tensors.branch.first + at}};
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      branch_rows<S, V, kPlane>(part, minimum, coefficients, from);
      apply_rows<S, V, kPlane>(part, any<S>(activation), Saved::kOutput, residual.values != nullptr,
                               coefficients, from, stores);
    });
  };
  if constexpr (kPlane) {
    for_plane_chunks(block, kMost, chunk);
  } else {
    const int64_t rows = block.width < kMost ? kMost / block.width : 1;
    for (int64_t row = 0; row < block.rows; row += rows)
      chunk(Block{smaller(rows, block.rows - row), block.stride, block.width, block.plane},
            row * block.stride);
  }
}

template <class S, bool kPlane>
void apply(Block block, ActivationChoice activation, Saved saved,
           const ApplyArguments<S, kPlane>& coefficients, const ApplyTensors<S>& tensors, Stores stores) {
  using T = accumulate_t<S>;
  const bool has_residual = tensors.residual.values != nullptr;
  const auto sweep = [&](const auto& act, auto kind, auto residual) PALIMPSEST_INLINE_LAMBDA {
    apply_rows<S, Vector<T>, kPlane>(block, act, kind, residual, coefficients, tensors, stores);
  };
  const auto inlined = [&]<class Act>(const Act& act) PALIMPSEST_INLINE_LAMBDA {
    if (saved == Saved::kOutput) sweep(act, Constant<Saved::kOutput>{}, Constant<false>{});
    if constexpr (Act::kSaved != Saved::kOutput)
      if (saved == Act::kSaved) sweep(act, Constant<Act::kSaved>{}, Constant<false>{});
    return saved == Saved::kOutput || saved == Act::kSaved;
  };
  if (saved == Saved::kOutputBit) {
    apply_branches<S, kPlane>(block, activation, coefficients, tensors, stores);
  } else if (is_straight<S>(activation, block.width)) {
    with_constant<Saved::kOutput, Saved::kPreActivation, Saved::kNormalized>(
        saved, [&](auto kind) PALIMPSEST_INLINE_LAMBDA {
          with_constant<true, false>(has_residual, [&](auto residual) PALIMPSEST_INLINE_LAMBDA {
            const auto lines = straight<T>(activation);
            if constexpr (decltype(kind){} == Saved::kOutput)
              if (activation.kind != Activation::kReLU)
                return sweep(LeakyActivation<T>{lines.slope}, kind, residual);
            sweep(lines, kind, residual);
          });
        });
  } else if (has_residual || !with_inline_activation<S>(activation, block.width, inlined)) {
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      apply_rows<S, V, kPlane>(block, any<S>(activation), saved, has_residual, coefficients, tensors, stores);
    });
  }
  if (stores == Stores::kStreaming) streaming_fence();
}

/// apply over columns. argument(values, is_read) returns the ColumnArgument of values per channel.
template <class S, class MakeArgument>
PALIMPSEST_HOST_DEVICE void apply_by_column(Block block, ActivationChoice activation, Saved saved,
                                            const ApplyCoefficients<accumulate_t<S>>& of_channels,
                                            const ApplyTensors<S>& tensors, Stores stores,
                                            const MakeArgument& argument) {
  const bool normalizes = saved == Saved::kNormalized;
  const auto mean = argument(of_channels.mean, !kIs16Bit<S>), scale = argument(of_channels.scale, true),
             shift = argument(of_channels.shift, true), weight = argument(of_channels.weight, normalizes),
             bias = argument(of_channels.bias, normalizes);
  apply<S, false>(block, activation, saved, {mean, scale, shift, weight, bias}, tensors, stores);
}

template <class S>
void columns_apply(Block block, ActivationChoice activation, Saved saved,
                   const ApplyCoefficients<accumulate_t<S>>& coefficients, const ApplyTensors<S>& tensors,
                   Stores stores) {
  apply_by_column(block, activation, saved, coefficients, tensors, stores, column_arguments<S>(block));
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
