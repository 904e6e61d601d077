#pragma once

#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// What cpu/abn.cpp asks of an instruction set: single-threaded sweeps over blocks of one tensor. Each set
/// compiles the same source (abn_kernels.cpp) into a namespace of its own and hands out one table.
///
/// Two geometries cover both layouts. A *block* is `rows` runs of `width` contiguous values, `stride` values
/// apart:
///   plane    all values belong to one channel    (NCHW: rows are images, width is a piece of the pixels)
///   columns  column j belongs to channel j       (channels-last: rows are pixels, width is a panel of
///   channels)
/// Per-channel arguments hold 1 value for a plane and `width` values for columns.
namespace palimpsest::kernels::cpu {

struct Block {
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t width = 0;
};

/// The widest block that a columns kernel takes: its per-channel sums live on the stack, in L1.
inline constexpr int64_t kMaxColumns = 2048;

/// y = (x - mean) * scale + shift; xhat = (x - mean) * inv_std + offset. `mean` is subtracted first, because
/// x * scale + (shift - mean * scale) loses all digits where |mean| is large against the standard deviation;
/// shift and offset carry the part of the mean that does not fit into a T.
template <class T>
struct ApplyCoefficients {
  const T* mean;
  const T* scale;
  const T* shift;
  const T* inv_std;
  const T* offset;
};

/// dx = dy * per_dy + t * per_t + constant, with t = y - bias, or t = xhat where that was kept.
template <class T>
struct BackwardCoefficients {
  const T* bias;
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

/// The sweeps of one geometry. f64 sums in, f64 sums out; inside, runs of at most a few thousand values are
/// summed in T over many independent lanes, whose relative error stays below 1e-6 in f32.
template <class T>
struct AbnSweeps {
  /// mean and sum of squared deviations of the block, per channel.
  void (*moments)(Block block, const T* x, double* mean, double* squares);
  /// z = act(y); z may be x; xhat may be null. All three are addressed by `block`.
  void (*apply)(Block block, ActivationChoice activation, ApplyCoefficients<T> coefficients, const T* x, T* z,
                T* xhat, Destination to);
  /// sum of dy and sum of dy * t, per channel; xhat may be null: t = y - bias then.
  void (*reduce)(Block block, ActivationChoice activation, const T* bias, const T* z, const T* xhat,
                 const T* dz, double* sum_dy, double* sum_dy_t);
  /// dx as above; dx may be dz; xhat may be null.
  void (*backward)(Block block, ActivationChoice activation, BackwardCoefficients<T> coefficients, const T* z,
                   const T* xhat, const T* dz, T* dx, Destination to);
  /// dx = dy * per_dy: statistics were constants.
  void (*backward_frozen)(Block block, ActivationChoice activation, BackwardCoefficients<T> coefficients,
                          const T* z, const T* dz, T* dx, Destination to);
};

template <class T>
struct AbnKernels {
  AbnSweeps<T> plane;
  AbnSweeps<T> columns;
};

struct InstructionSet {
  const char* name;
  bool (*runs_here)();
  AbnKernels<float> f32;
  AbnKernels<double> f64;

  template <class T>
  const AbnKernels<T>& kernels() const {
    if constexpr (sizeof(T) == sizeof(double))
      return f64;
    else
      return f32;
  }
};

}  // namespace palimpsest::kernels::cpu
