#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/cpu/simd/block.h"

#include <cstdint>

/// The functions that an instruction set provides for the fused layer: single-threaded sweeps over blocks of
/// one tensor. Each set compiles f32.cpp and its siblings into its own namespace and provides one table per
/// storage type.
///
/// Three geometries cover both layouts. In a block (simd/block.h)
///   plane    all values belong to one channel        (NCHW: rows are images, width is a part of the pixels)
///   strip    column j belongs to channel j / plane   (NCHW: rows are images, width is the small planes of
///                                                     neighbouring channels, side by side)
///   columns  column j belongs to channel j           (channels-last: rows are pixels, width is a panel of
///                                                     channels)
/// Per-channel arguments hold 1 value for a plane, `width / plane` for a strip and `width` for columns.
namespace palimpsest::kernels::cpu::abn {

/// Returns the kind of saved values as forward sweeps distinguish them: kPreActivation and kNormalized write
/// saved values beside z, kOutputBit writes bits, and kOutput stands for all kinds that write only z.
constexpr Saved forward_kind(Saved saved) {
  return saves_aside(saved) || saved == Saved::kOutputBit ? saved : Saved::kOutput;
}

/// Returns the kind of saved values as backward sweeps distinguish them: kInput stands for x and x-hat, whose
/// y is (v - center) * scale + shift.
constexpr Saved backward_kind(Saved saved) {
  return saved == Saved::kNormalized ? Saved::kInput : saved;
}

/// See kernels/formulas/abn_formulas.h; one value per channel, as the geometry wants it. Values: sweeps over columns
/// hold them as abn/arguments.h has it. For S in 16 bits y is
/// v * scale + shift, whose shift holds the mean (uncentered_shift). For bf16 the lower half of a NaN must be 0
/// (round_in_turn in simd/storage.h), here and in BackwardCoefficients.
template <class T, class Values = const T*>
struct ApplyCoefficients {
  Values mean;
  Values scale;
  Values shift;
  Values weight;
  Values bias;
};

/// For S in 16 bits shift holds the center, and so does constant unless the statistics are frozen: dx is computed from
/// t without its center. The sums are of t with it.
template <class T, class Values = const T*>
struct BackwardCoefficients {
  Values center;
  Values scale;
  Values shift;
  Values per_dy;
  Values per_t;
  Values constant;
};

struct ActivationChoice {
  Activation kind;
  double param;
};

/// A tensor that is added to y, or null; max(residual, 0) is added if `relu`.
template <class S>
struct Residual {
  const S* values;
  bool relu;
};

/// Bit `first + i` belongs to the value at offset i: see branch_bytes in kernels/formulas/branch_inverse.h.
template <class Byte>
struct BranchBits {
  Byte* bytes = nullptr;
  int64_t first = 0;
};

template <class S>
struct ApplyTensors {
  const S* x;
  Residual<S> residual;
  S* z;                          ///< may be x
  S* saved_values;               ///< may be x; null unless saves_aside(saved)
  BranchBits<uint8_t> branch{};  ///< for kOutputBit: zeros, which become the bits
};

template <class S>
struct GradientTensors {
  const S* saved_values;
  Residual<S> residual;
  const S* dz;
  BranchBits<const uint8_t> branch{};  ///< for kOutputBit
};

template <class S>
struct BackwardOutputs {
  S* dx;         ///< may be dz
  S* dresidual;  ///< may be null
  S* z;          ///< may be null; becomes act(y) if is_before_activation(saved)
  /// kStreaming requires that dresidual lies as dx does in its cache line, if dx is streamed too.
  Stores dresidual_stores = Stores::kCached;
};

/// The sweeps of one geometry over storage in S, computed in the accumulate type T. Sums are returned in f64;
/// runs of at most a few thousand values are summed in T over many independent lanes, with a relative error
/// below 1e-6 in f32.
template <class S>
struct Sweeps {
  using T = accumulate_t<S>;
  /// mean and sum of squared deviations of the block, per channel.
  void (*moments)(Block block, const S* x, double* mean, double* squares);
  /// z and the saved values or bits. `saved` is a forward_kind.
  void (*apply)(Block block, ActivationChoice activation, Saved saved,
                const ApplyCoefficients<T>& coefficients, const ApplyTensors<S>& tensors, Stores stores);
  /// sum of dy and sum of dy * t, per channel. `saved` is a backward_kind.
  void (*reduce)(Block block, ActivationChoice activation, Saved saved,
                 const BackwardCoefficients<T>& coefficients, const GradientTensors<S>& tensors,
                 double* sum_dy, double* sum_dy_t);
  /// dx, or dx = dy * per_dy for frozen statistics; dresidual = dy, 0 where `relu` cut the residual off. `stores`:
  /// how dx is written.
  void (*backward)(Block block, ActivationChoice activation, Saved saved, bool frozen,
                   const BackwardCoefficients<T>& coefficients, const GradientTensors<S>& tensors,
                   const BackwardOutputs<S>& outputs, Stores stores);
};

template <class S>
struct Kernels {
  Sweeps<S> plane;
  Sweeps<S> strip;
  Sweeps<S> columns;
};

}  // namespace palimpsest::kernels::cpu::abn
