#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// What cpu/abn.cpp asks of an instruction set: single-threaded sweeps over blocks of one tensor. Each set
/// compiles the same sources (abn_f32.cpp and its siblings) into a namespace of its own and hands out one
/// table for each type of storage.
///
/// Three geometries cover both layouts. A *block* is `rows` runs of `width` contiguous values, `stride`
/// values apart:
///   plane    all values belong to one channel        (NCHW: rows are images, width is a piece of the pixels)
///   strip    column j belongs to channel j / plane   (NCHW: rows are images, width is the small planes of
///                                                     neighbouring channels, side by side)
///   columns  column j belongs to channel j           (channels-last: rows are pixels, width is a panel of
///                                                     channels)
/// Per-channel arguments hold 1 value for a plane, `width / plane` for a strip and `width` for columns.
namespace palimpsest::kernels::cpu {

struct Block {
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t width = 0;
  int64_t plane = 0;  ///< of a strip: neighbouring columns that belong to one channel
};

/// The widest block that a strip or a columns kernel takes: its sums live on the stack, in L1.
inline constexpr int64_t kMaxColumns = 2048;

/// What a forward pass stores beside z.
enum class Keep {
  kNothing,
  kPreActivation,  ///< y
  kNormalized,     ///< x-hat
  kBranch,         ///< one bit: y > y_min
};

/// k = (x - mean) * scale + shift, and y = k, or y = k * weight + bias where x-hat = k is kept. `mean` is
/// subtracted first, because x * scale + (shift - mean * scale) loses all digits where |mean| is large
/// against the standard deviation; shift carries the part of the mean that does not fit into a T.
template <class T>
struct ApplyCoefficients {
  const T* mean;
  const T* scale;
  const T* shift;
  const T* weight;
  const T* bias;
};

/// What backward starts from.
enum class From {
  kOutput,         ///< z: t = act^-1(z) - residual - center
  kNormalized,     ///< the same times `scale` = 1 / weight: t = x-hat, the paper's form I
  kPreActivation,  ///< y without the residual: t = y - center
  kBefore,         ///< k before the activation: t = k - center, y = t * scale + shift + residual
  kBranch,         ///< as kOutput, for z of an activation with two branches and the bit that says which
};

/// dx = dy * per_dy + t * per_t + constant.
template <class T>
struct BackwardCoefficients {
  const T* center;
  const T* scale;
  const T* shift;
  const T* per_dy;
  const T* per_t;
  const T* constant;
};

/// Where a sweep writes. Past the caches saves the read of each line that is written, a quarter of a backward
/// pass; it is for outputs that the caches would not hold until their reader comes.
enum class Destination { kCaches, kPastCaches };

struct ActivationChoice {
  Activation kind;
  double param;
};

/// A tensor that is added to y, or null; read through a ReLU where `relu` says so.
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
  S* kept;                       ///< may be x; null but for kPreActivation and kNormalized
  BranchBits<uint8_t> branch{};  ///< for Keep::kBranch; zeros
};

template <class S>
struct GradientTensors {
  const S* kept;
  Residual<S> residual;
  const S* dz;
  BranchBits<const uint8_t> branch{};  ///< for From::kBranch
};

template <class S>
struct BackwardOutputs {
  S* dx;         ///< may be dz
  S* dresidual;  ///< may be null
  S* z;          ///< may be null; act(y), for From::kPreActivation and kBefore
};

/// The sweeps of one geometry over storage in S, with maths in T. f64 sums out; inside, runs of at most a few
/// thousand values are summed in T over many independent lanes, whose relative error stays below 1e-6 in f32.
template <class S>
struct AbnSweeps {
  using T = accumulate_t<S>;
  /// mean and sum of squared deviations of the block, per channel.
  void (*moments)(Block block, const S* x, double* mean, double* squares);
  /// z = act(y + residual).
  void (*apply)(Block block, ActivationChoice activation, Keep keep, const ApplyCoefficients<T>& coefficients,
                const ApplyTensors<S>& tensors, Destination to);
  /// sum of dy and sum of dy * t, per channel.
  void (*reduce)(Block block, ActivationChoice activation, From from,
                 const BackwardCoefficients<T>& coefficients, const GradientTensors<S>& tensors,
                 double* sum_dy, double* sum_dy_t);
  /// dx as above, or dx = dy * per_dy where `frozen`: statistics were constants. dresidual = dy (0 where a
  /// ReLU hid the residual).
  void (*backward)(Block block, ActivationChoice activation, From from, bool frozen,
                   const BackwardCoefficients<T>& coefficients, const GradientTensors<S>& tensors,
                   const BackwardOutputs<S>& outputs, Destination to);
};

template <class S>
struct AbnKernels {
  AbnSweeps<S> plane;
  AbnSweeps<S> strip;
  AbnSweeps<S> columns;
};

}  // namespace palimpsest::kernels::cpu
