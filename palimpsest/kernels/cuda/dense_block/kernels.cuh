#pragma once

#include "palimpsest/kernels/cuda/dense_block/walk.cuh"
#include "palimpsest/kernels/cuda/device/gradient_sums.cuh"
#include "palimpsest/kernels/cuda/device/workspace.h"
#include "palimpsest/kernels/formulas/abn_formulas.h"

/// The kernels of a densely connected block. Grid of each: block b of kThreads threads does segment b /
/// panels of panel b % panels. Registers of each: at most 64, so that four blocks run per multiprocessor.
namespace palimpsest::kernels::cuda::dense_block_detail {

/// A layer's normalization and activation: z = act((x - mean) * scale + shift).
template <class S>
struct NormArguments {
  using T = accumulate_t<S>;
  const double* mean;
  const double* var;
  const T* weight;
  const T* bias;
  double eps;
  bool relu;
  T slope;  ///< the factor of y <= 0

  __device__ __forceinline__ double inv_std(int64_t c) const { return 1 / sqrt(var[c] + eps); }
  __device__ __forceinline__ double scale(int64_t c) const { return value_or(weight, c, 1) * inv_std(c); }
  __device__ __forceinline__ T act(T y) const {
    // ReLU of -infinity is 0, and -infinity * 0 is NaN. NaN stays NaN.
    return y <= T(0) ? (relu ? T(0) : y * slope) : y;
  }
  __device__ __forceinline__ T derivative(T y) const { return y <= T(0) ? slope : T(1); }
};

/// kernels::RunningStatistics with types.
template <class T>
struct RunningArguments {
  T* mean;
  T* var;
  double momentum;
  double unbiased;  ///< m / (m - 1)

  __device__ __forceinline__ void move(int64_t c, double batch_mean, double batch_var) const {
    mean[c] = static_cast<T>((1 - momentum) * static_cast<double>(mean[c]) + momentum * batch_mean);
    var[c] = static_cast<T>((1 - momentum) * static_cast<double>(var[c]) + momentum * unbiased * batch_var);
  }
};

/// DenseNormalizeBackward with types.
template <class S>
struct BackwardArguments {
  using T = accumulate_t<S>;
  const S* x;
  S* dz;
  T* gradient;
  T* dweight;
  T* dbias;
  double* constant;
  double* per_deviation;
  bool makes_z;
  double m;

  __device__ __forceinline__ bool has_sums() const { return dweight || dbias || constant; }
};

template <class S>
struct FeatureArguments {
  const S* x;
  const accumulate_t<S>* gradient;
  S* df;
  const double* mean;  ///< may be null
  const double* constant;
  const double* per_deviation;
};

/// (x - mean) * scale + shift for the channels of a panel. shift contains the part of the mean that does not
/// fit into a T.
template <class T, int kPanel>
struct PanelCoefficients {
  alignas(16) T mean[kPanel];
  alignas(16) T scale[kPanel];
  alignas(16) T shift[kPanel];

  __device__ __forceinline__ void set(int j, double mean_of_c, double scale_of_c, double shift_of_c) {
    mean[j] = static_cast<T>(mean_of_c);
    scale[j] = static_cast<T>(scale_of_c);
    shift[j] = static_cast<T>(shift_of_c - low_part<T>(mean_of_c) * scale_of_c);
  }
};

/// V values of the accumulate type, 16 bytes at a time.
template <class S, int V>
struct AccumulateValues {
  using T = accumulate_t<S>;
  static constexpr int kPart = V == 1 ? 1 : 16 / sizeof(T);
  Stored<T, kPart> parts[V / kPart];

  __device__ __forceinline__ void load(const T* from) {
    PALIMPSEST_UNROLL
    for (int p = 0; p < V / kPart; ++p) parts[p].load(from + p * kPart);
  }
  __device__ __forceinline__ T value(int i) const { return parts[i / kPart].value(i % kPart); }
};

/// Vectors that a thread has under way in a kernel that reads `kTensors` tensors, with at most 64 registers.
template <class Walk, int kTensors>
inline constexpr int kUnrollOf = (Walk::kChannels > 1 ? 2 : 4) / kTensors;

/// dense_normalize. Shared: the panel's coefficients, at most 768 bytes.
template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    dense_normalize_kernel(BufferCut cut, NormArguments<S> norm, RunningArguments<accumulate_t<S>> running,
                           const S* x, S* z) {
  constexpr int kPanel = Walk::kPanelChannels, V = Walk::kVector, kPerChannel = V / Walk::kChannels;
  constexpr int kUnroll = kUnrollOf<Walk, 1>;
  PALIMPSEST_SHARED(coefficients, PanelCoefficients<accumulate_t<S>, kPanel>);
  const int panel = static_cast<int>(blockIdx.x % cut.panels),
            segment = static_cast<int>(blockIdx.x / cut.panels);
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.c) {
    coefficients.set(static_cast<int>(threadIdx.x), norm.mean[channel], norm.scale(channel),
                     value_or(norm.bias, channel, 0));
    if (segment == 0 && running.mean) running.move(channel, norm.mean[channel], norm.var[channel]);
  }
  __syncthreads();
  const Walk walk(cut, panel);
  const int first = walk.first_channel();
  const auto do_vectors = [&](const BufferPlace(&at)[kUnroll]) {
    Stored<S, V> in[kUnroll];
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u)
      if (at[u].wide >= 0) in[u].load(x + at[u].wide);
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u].wide < 0) continue;
      Values<S, V> v = in[u].values();
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) {
        const int c = first + i / kPerChannel;
        v[i] = norm.act((v[i] - coefficients.mean[c]) * coefficients.scale[c] + coefficients.shift[c]);
      }
      in[u].set(v);
      in[u].store(z + at[u].own);
    }
  };
  walk.template vectors<kUnroll>(cut.first_piece(segment), cut.first_piece(segment + 1), do_vectors);
}

/// Writes the results that follow from the sums of channel c: gradients of its parameters, and corrections of
/// its features.
template <class S>
__device__ __forceinline__ void write_sums(const BackwardArguments<S>& arguments,
                                           const NormArguments<S>& norm, int64_t c,
                                           const GradientSums& sums) {
  using T = accumulate_t<S>;
  const double inv_std = norm.inv_std(c), scale = norm.scale(c);
  const double dy_x = sums.dy_t - low_part<T>(norm.mean[c]) * sums.dy;
  if (arguments.dweight) arguments.dweight[c] = static_cast<T>(dy_x * inv_std);
  if (arguments.dbias) arguments.dbias[c] = static_cast<T>(sums.dy);
  if (!arguments.constant) return;
  arguments.constant[c] += scale * sums.dy / arguments.m;
  arguments.per_deviation[c] += scale * inv_std * inv_std * dy_x / arguments.m;
}

/// Does one vector: adds to the buffer's gradient and to the thread's sums, and writes z over dz if that is
/// wanted.
template <class Walk, class S, class Coefficients>
__device__ __forceinline__ void add_gradient(const BackwardArguments<S>& arguments,
                                             const NormArguments<S>& norm, const Coefficients& coefficients,
                                             int first, const BufferPlace& at,
                                             ThreadSums<accumulate_t<S>, Walk::kChannels>& own) {
  using T = accumulate_t<S>;
  constexpr int V = Walk::kVector, kPerChannel = V / Walk::kChannels, kPart = AccumulateValues<S, V>::kPart;
  Stored<S, V> x, dz;
  x.load(arguments.x + at.wide);
  dz.load(arguments.dz + at.own);
  PALIMPSEST_UNROLL
  for (int begin = 0; begin < V; begin += kPart) {
    Stored<T, kPart> gradient;
    if (arguments.gradient) gradient.load(arguments.gradient + at.wide + begin);
    PALIMPSEST_UNROLL
    for (int j = 0; j < kPart; ++j) {
      const int i = begin + j, c = first + i / kPerChannel;
      const T away = x.value(i) - coefficients.mean[c];
      const T y = away * coefficients.scale[c] + coefficients.shift[c];
      const T dy = dz.value(i) * norm.derivative(y);
      own.dy[i / kPerChannel] += dy;
      own.dy_t[i / kPerChannel] += dy * away;
      gradient.set_value(j, gradient.value(j) + coefficients.scale[c] * dy);
      dz.set_value(i, norm.act(y));
    }
    if (arguments.gradient) gradient.store(arguments.gradient + at.wide + begin);
  }
  if (arguments.makes_z) dz.store(arguments.dz + at.own);
}

/// dense_normalize_backward. x and dz are read once, gradient is read and written once; the last block of a
/// panel adds up its segments. Shared: 4 to 9 KB for coefficients and sums.
template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    dense_normalize_backward_kernel(BufferCut cut, NormArguments<S> norm, BackwardArguments<S> arguments,
                                    Workspace workspace) {
  using T = accumulate_t<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(coefficients, PanelCoefficients<T, kPanel>);
  PALIMPSEST_SHARED(place, BlockPlace[1]);
  int panel = static_cast<int>(blockIdx.x % cut.panels), segment = static_cast<int>(blockIdx.x / cut.panels);
  if (threadIdx.x == 0) place[0] = {panel, segment};
  const int j = static_cast<int>(threadIdx.x);
  if (const int64_t channel = int64_t{panel} * kPanel + j; j < kPanel && channel < cut.c)
    coefficients.set(j, norm.mean[channel], norm.scale(channel), value_or(norm.bias, channel, 0));
  __syncthreads();
  const Walk walk(cut, panel);
  const int first = walk.first_channel();
  ThreadSums<T, Walk::kChannels> own;
  const auto do_vector = [&](const BufferPlace(&at)[1]) {
    forget_memory();  // reads the coefficients again: to hold them would take 24 of 64 registers
    add_gradient<Walk>(arguments, norm, coefficients, first, at[0], own);
  };
  walk.template vectors<1>(cut.first_piece(segment), cut.first_piece(segment + 1), do_vector);
  if (!arguments.has_sums()) return;
  GradientSums sums = block_sums<Walk>(own, kPanel / Walk::kChannels);
  panel = place[0].panel, segment = place[0].segment;
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  const bool has_channel = threadIdx.x < kPanel && channel < cut.c;
  if (cut.segments > 1) {
    auto* const records = static_cast<GradientSums*>(workspace.records);
    if (has_channel) records[segment * cut.c + channel] = sums;
    if (!is_last_block(workspace.counters + panel, static_cast<unsigned>(cut.segments))) return;
    sums = sum_segments(records, cut.segments, cut.c, int64_t{panel} * kPanel, kPanel);
  }
  if (has_channel) write_sums(arguments, norm, channel, sums);
}

/// dense_feature_gradient. Shared: the panel's coefficients, at most 768 bytes.
template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    dense_feature_gradient_kernel(BufferCut cut, FeatureArguments<S> arguments) {
  using T = accumulate_t<S>;
  constexpr int kPanel = Walk::kPanelChannels, V = Walk::kVector, kPerChannel = V / Walk::kChannels;
  constexpr int kUnroll = kUnrollOf<Walk, 2>;
  PALIMPSEST_SHARED(coefficients, PanelCoefficients<T, kPanel>);  // of the term subtracted from the gradient
  const int panel = static_cast<int>(blockIdx.x % cut.panels),
            segment = static_cast<int>(blockIdx.x / cut.panels);
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.c)
    coefficients.set(static_cast<int>(threadIdx.x), arguments.mean ? arguments.mean[channel] : 0,
                     arguments.per_deviation[channel], arguments.constant[channel]);
  __syncthreads();
  const Walk walk(cut, panel);
  const int first = walk.first_channel();
  const auto do_vectors = [&](const BufferPlace(&at)[kUnroll]) {
    Stored<S, V> x[kUnroll];
    AccumulateValues<S, V> gradient[kUnroll];
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u].wide < 0) continue;
      x[u].load(arguments.x + at[u].wide);
      gradient[u].load(arguments.gradient + at[u].wide);
    }
    PALIMPSEST_UNROLL
    for (int u = 0; u < kUnroll; ++u) {
      if (at[u].wide < 0) continue;
      Values<S, V> v = x[u].values();
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) {
        const int c = first + i / kPerChannel;
        v[i] = gradient[u].value(i) -
               ((v[i] - coefficients.mean[c]) * coefficients.scale[c] + coefficients.shift[c]);
      }
      x[u].set(v);
      x[u].store(arguments.df + at[u].own);
    }
  };
  walk.template vectors<kUnroll>(cut.first_piece(segment), cut.first_piece(segment + 1), do_vectors);
}

}  // namespace palimpsest::kernels::cuda::dense_block_detail
