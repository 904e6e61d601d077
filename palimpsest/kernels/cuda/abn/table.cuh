#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/cuda/device/slot_report.cuh"
#include "palimpsest/kernels/cuda/device/walk.cuh"
#include "palimpsest/kernels/cuda/device/workspace.h"

#include <cstddef>
#include <cstdint>
#include <limits>

/// The launches that abn.cu needs for one storage type. f32.cu, f64.cu, f16.cu and bf16.cu compile them for
/// their type.
namespace palimpsest::kernels::cuda::abn_detail {

/// The destinations of statistics; any pointer may be null.
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

/// residual_floor of the following: a residual that is not above it counts as 0. With relu_residual it is 0,
/// else NaN, which no number is below, so that kernels need not ask for each value whether there is a ReLU.
template <class T>
T residual_floor(bool relu_residual) {
  return relu_residual ? T(0) : std::numeric_limits<T>::quiet_NaN();
}

template <class S>
struct ApplyArguments {
  const S* x;
  const S* residual;  ///< may be null
  S* z;               ///< may be x
  S* saved_values;    ///< null unless saves_aside(saved); may be x
  accumulate_t<S> residual_floor;
  Saved saved;   ///< the tensor that this launch stores for backward; kOutput: z only
  Saved source;  ///< the tensor at x: kInput, or the kPreActivation or kNormalized from which z is recomputed
  const accumulate_t<S>* weight;
  const accumulate_t<S>* bias;
  const double* mean;
  const double* inv_std;
  uint8_t* branch;          ///< for Saved::kOutputBit: zeros, at a multiple of 4 bytes
  accumulate_t<S> minimum;  ///< the bit of a value is y > minimum
};

/// kernels::AbnBackward with types.
template <class S>
struct BackwardArguments {
  const S* saved_values;
  const S* residual;  ///< may be null
  const S* dz;
  const uint8_t* branch;
  S* dx;         ///< may be dz
  S* dresidual;  ///< may be null
  S* z;          ///< may be null
  accumulate_t<S> residual_floor;
  bool frozen;  ///< the statistics were constants: there are no sums
  Saved saved;  ///< never kOutputForm1
  const accumulate_t<S>* weight;
  const accumulate_t<S>* bias;
  const double* mean;
  const double* inv_std;
  accumulate_t<S>* sum_dy;
  accumulate_t<S>* sum_dy_xhat;
  double m;  ///< values behind the sums
};

/// How a launch divides a tensor.
struct Geometry {
  Cut cut;
  int vector = 1;  ///< values that a thread accesses at a time: kLanes or, in channels-last, less
  std::size_t shared_bytes = 0;  ///< resident kernels: for a block's share of the tensor
};

/// The launches for storage type S. `slots`: a choice that the launch reports on the way. Resident kernels
/// need one cluster of cut.segments blocks per panel.
template <class S>
struct LaunchTable {
  using T = accumulate_t<S>;
  void (*statistics)(const AbnProblem& problem, const Geometry& geometry, const S* x,
                     const StatisticsOutputs<T>& outputs, const Workspace& workspace,
                     const SlotArguments& slots, Stream stream);
  /// `follows`: the launch before it on the stream is `statistics` for the same tensor (LaunchShape).
  void (*apply)(const AbnProblem& problem, const Geometry& geometry, const ApplyArguments<S>& arguments,
                bool follows, Stream stream);
  /// Returns the clusters of resident_forward that the current device runs at once; 0: it refuses them.
  int64_t (*forward_clusters)(const AbnProblem& problem, const Geometry& geometry, bool residual);
  /// statistics and apply in one launch.
  void (*resident_forward)(const AbnProblem& problem, const Geometry& geometry,
                           const ApplyArguments<S>& arguments, const StatisticsOutputs<T>& outputs,
                           const SlotArguments& slots, Stream stream);
  void (*backward_reduce)(const AbnProblem& problem, const Geometry& geometry,
                          const BackwardArguments<S>& arguments, const Workspace& workspace, Stream stream);
  /// `follows`: the launch before it on the stream is `backward_reduce` for the same tensor.
  void (*backward_apply)(const AbnProblem& problem, const Geometry& geometry,
                         const BackwardArguments<S>& arguments, bool follows, Stream stream);
  /// Returns the clusters of resident_backward that the current device runs at once; 0: it refuses them. Also 0 if there is no such kernel for `problem`: backward_reduce and
  /// backward_apply do the same.
  int64_t (*backward_clusters)(const AbnProblem& problem, const Geometry& geometry, bool residual);
  /// backward_reduce and backward_apply in one launch.
  void (*resident_backward)(const AbnProblem& problem, const Geometry& geometry,
                            const BackwardArguments<S>& arguments, Stream stream);
};

template <class S>
const LaunchTable<S>& launch_table();
template <>
const LaunchTable<float>& launch_table<float>();
template <>
const LaunchTable<double>& launch_table<double>();
template <>
const LaunchTable<Float16>& launch_table<Float16>();
template <>
const LaunchTable<BFloat16>& launch_table<BFloat16>();

}  // namespace palimpsest::kernels::cuda::abn_detail
