#pragma once

// As vector.h: only for units that are compiled once per instruction set.

#include "palimpsest/kernels/cpu/abn/activation.h"
#include "palimpsest/kernels/cpu/abn/branch_bits.h"
#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace {

template <class V>
struct Applied {
  V z, kept;
};

/// Keep_, Residual_: a Keep and a bool, or Constants of them.
template <class S, class V, bool kPlane, class Act, class Keep_, class Residual_>
void apply_rows(Block block, const Act& act, Keep_ keep, Residual_ has_residual,
                const ApplyCoefficients<MathsOf<S>>& k, const ApplyTensors<S>& t, Destination to) {
  using T = MathsOf<S>;
  const PerChannel<T, V, kPlane> mean(k.mean), scale(k.scale), shift(k.shift), weight(k.weight), bias(k.bias);
  // A plane is in cache when this sweep begins, and what follows it comes with the rows of the next one.
  const int64_t ahead = values_ahead(block);
  map_rows<lanes<T, V>()>(
      block, t.z,
      [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
        if constexpr (!kPlane) __builtin_prefetch(t.x + i + ahead);
        Applied<V> out{};
        V y = (load_as<V>(t.x + i) - mean.at(j)) * scale.at(j) + shift.at(j);
        // From what is stored: then z can be made again from it, bit for bit.
        if (keep != Keep::kNothing) y = out.kept = as_stored<S>(y);
        if (keep == Keep::kNormalized) y = y * weight.at(j) + bias.at(j);
        if (has_residual) y += residual_at<V>(t.residual, i);
        out.z = act.template forward<V>(y);
        return out;
      },
      [&](int64_t i, const Applied<V>& out, bool aligned) PALIMPSEST_INLINE_LAMBDA {
        store_as(t.z + i, out.z, aligned && to == Destination::kPastCaches);
        if (keep != Keep::kNothing) store_as(t.kept + i, out.kept, false);
      });
}

/// Stores which branch each y of the block lies on.
template <class S, class V, bool kPlane>
void branch_rows(Block block, MathsOf<S> minimum, const ApplyCoefficients<MathsOf<S>>& k,
                 const ApplyTensors<S>& t) {
  using T = MathsOf<S>;
  constexpr int64_t kLanes = lanes<T, V>();
  const PerChannel<T, V, kPlane> mean(k.mean), scale(k.scale), shift(k.shift);
  const auto rising = [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
    V y = (load_as<V>(t.x + i) - mean.at(j)) * scale.at(j) + shift.at(j);
    if (t.residual.values) y += residual_at<V>(t.residual, i);
    return lane_bits<T>(y > minimum);
  };
  const int64_t rest = block.width % kLanes, whole = block.width - rest;
  for (int64_t row = 0; row < block.rows; ++row) {
    const int64_t at = row * block.stride;
    BitWriter writer(t.branch.bytes, t.branch.first + at);
    for (int64_t j = 0; j < whole; j += kLanes) writer.append(rising(at + j, j), kLanes);
    if (rest > 0) {  // the vector that ends the row, without the lanes that were written already
      const int64_t last = block.width - kLanes;
      writer.append(rising(at + last, last) >> (kLanes - rest), static_cast<uint32_t>(rest));
    }
    writer.finish();
  }
}

/// Both branch and z, some values at a time: x, which z may replace, comes from memory once.
template <class S, bool kPlane>
void apply_branches(Block block, ActivationChoice activation, const ApplyCoefficients<MathsOf<S>>& k,
                    const ApplyTensors<S>& t, Destination to) {
  using T = MathsOf<S>;
  constexpr int64_t kMost = 8192;  // 32 KiB of f32
  const T minimum = minimum_at<T>(activation.kind);
  const auto chunk = [&](Block part, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    const ApplyTensors<S> from{t.x + at,
                               {t.residual.values ? t.residual.values + at : nullptr, t.residual.relu},
                               t.z + at,
                               nullptr,
                               {t.branch.bytes, t.branch.first + at}};
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      branch_rows<S, V, kPlane>(part, minimum, k, from);
      apply_rows<S, V, kPlane>(part, any<S>(activation), Keep::kNothing, t.residual.values != nullptr, k,
                               from, to);
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
void apply(Block block, ActivationChoice activation, Keep keep, const ApplyCoefficients<MathsOf<S>>& k,
           const ApplyTensors<S>& t, Destination to) {
  using T = MathsOf<S>;
  const bool has_residual = t.residual.values != nullptr;
  if (keep == Keep::kBranch) {
    apply_branches<S, kPlane>(block, activation, k, t, to);
  } else if (is_straight<S>(activation, block.width)) {
    with_constant<Keep::kNothing, Keep::kPreActivation, Keep::kNormalized>(
        keep, [&](auto kept) PALIMPSEST_INLINE_LAMBDA {
          with_constant<true, false>(has_residual, [&](auto residual) PALIMPSEST_INLINE_LAMBDA {
            apply_rows<S, Vector<T>, kPlane>(block, straight<T>(activation), kept, residual, k, t, to);
          });
        });
  } else {
    with_lanes<T>(block.width, [&]<class V>(V) PALIMPSEST_INLINE_LAMBDA {
      apply_rows<S, V, kPlane>(block, any<S>(activation), keep, has_residual, k, t, to);
    });
  }
  if (to == Destination::kPastCaches) fence();
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
