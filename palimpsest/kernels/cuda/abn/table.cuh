#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/cuda/abn.h"
#include "palimpsest/kernels/cuda/abn/moments.cuh"
#include "palimpsest/kernels/cuda/device/walk.cuh"

#include <cstdint>

/// What abn.cu asks of a type of storage: launches over a cut of the tensor. abn_f32.cu and its siblings
/// compile the same templates for one type each.
namespace palimpsest::kernels::cuda {

/// Where statistics go; any pointer may be null.
template <class T>
struct StatisticsOutputs {
  double* mean;
  double* var;
  double* inv_std;
  double eps;
  T* running_mean;
  T* running_var;
  double momentum;
};

/// What a forward pass stores beside z.
enum class Keep { kNothing, kPreActivation, kNormalized, kBranch };

/// What x of the launch is: the layer's input, or what one kept for backward.
enum class Source { kInput, kPreActivation, kNormalized };

template <class S>
struct ApplyArguments {
  const S* x;
  const S* residual;  ///< may be null
  S* z;               ///< may be x
  S* kept;            ///< may be x; null for Keep::kNothing
  bool relu_residual;
  Keep keep;
  Source source;
  const MathsOf<S>* weight;
  const MathsOf<S>* bias;
  const double* mean;
  const double* inv_std;
  uint8_t* branch;     ///< for Keep::kBranch; zeros, on a multiple of 4 bytes
  MathsOf<S> minimum;  ///< the bit of a value is y > minimum
};

/// As kernels::AbnBackward has them.
template <class S>
struct BackwardArguments {
  const S* kept;
  const S* residual;  ///< may be null
  const S* dz;
  const uint8_t* branch;
  S* dx;         ///< may be dz
  S* dresidual;  ///< may be null
  S* z;          ///< may be null
  bool relu_residual;
  bool frozen;  ///< statistics were constants: there are no sums
  Saved from;
  const MathsOf<S>* weight;
  const MathsOf<S>* bias;
  const double* mean;
  const double* inv_std;
  MathsOf<S>* sum_dy;
  MathsOf<S>* sum_dy_xhat;
  double m;  ///< values behind the sums
};

/// Where blocks leave what they found for the last one.
struct Workspace {
  unsigned* counters;  ///< one a panel, 0 between launches
  void* records;       ///< (segments, C) Moments or sums
};

/// How a launch is made. `vectors`: 16 bytes at a time; else one value, for addresses that do not allow it.
struct Geometry {
  Cut cut;
  bool vectors = true;
  std::size_t shared_bytes = 0;  ///< for a share of the tensor that stays on the chip
};

template <class S>
struct AbnKernels {
  using T = MathsOf<S>;
  void (*statistics)(const AbnProblem& layer, const Geometry& g, const S* x, const StatisticsOutputs<T>& out,
                     const Workspace& workspace, Stream stream);
  void (*apply)(const AbnProblem& layer, const Geometry& g, const ApplyArguments<S>& t, Stream stream);
  /// Statistics and apply in one launch; g.cut.segments is g.cluster.
  void (*resident_forward)(const AbnProblem& layer, const Geometry& g, const ApplyArguments<S>& t,
                           const StatisticsOutputs<T>& out, Stream stream);
  void (*reduce)(const AbnProblem& layer, const Geometry& g, const BackwardArguments<S>& t,
                 const Workspace& workspace, Stream stream);
  void (*propagate)(const AbnProblem& layer, const Geometry& g, const BackwardArguments<S>& t, Stream stream);
  /// Whether resident_backward is there for the layer; else two launches do the same.
  bool (*has_resident_backward)(const AbnProblem& layer, const Geometry& g);
  /// Reduce and propagate in one launch; g.cut.segments is g.cluster.
  void (*resident_backward)(const AbnProblem& layer, const Geometry& g, const BackwardArguments<S>& t,
                            Stream stream);
};

template <class S>
const AbnKernels<S>& abn_kernels();
template <>
const AbnKernels<float>& abn_kernels<float>();
template <>
const AbnKernels<double>& abn_kernels<double>();
template <>
const AbnKernels<Float16>& abn_kernels<Float16>();
template <>
const AbnKernels<BFloat16>& abn_kernels<BFloat16>();

// The panels of each kernel: how many vectors wide in channels-last. A sweep that reduces has narrow ones, so
// that many blocks share the work of putting sums together; one that does not has whole 128-byte lines. A
// resident one has 64 bytes, so that its share of all pixels is small.
inline constexpr int kReducePanel = 4, kApplyPanel = 8, kScalarPanel = 32;
inline constexpr int kThreads = 256, kResidentThreads = 512;

}  // namespace palimpsest::kernels::cuda
