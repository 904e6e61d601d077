#pragma once

#include "palimpsest/kernels/cuda/abn/backward.cuh"
#include "palimpsest/kernels/cuda/abn/table.cuh"
#include "palimpsest/kernels/cuda/dense_block/walk.cuh"

/// The kernels of a densely connected block: one thread block works on a segment of a panel, as in
/// abn_kernels.h, block b on segment b / panels of panel b % panels.
namespace palimpsest::kernels::cuda {

template <class S>
struct DenseNormArguments {
  const double* mean;
  const double* var;
  const MathsOf<S>* weight;
  const MathsOf<S>* bias;
  double eps;
  bool relu;
  MathsOf<S> slope;  ///< of y <= 0

  __device__ __forceinline__ double inv_std(int64_t c) const { return 1 / sqrt(var[c] + eps); }
  __device__ __forceinline__ double scale(int64_t c) const { return value_or(weight, c, 1) * inv_std(c); }
  __device__ __forceinline__ MathsOf<S> act(MathsOf<S> y) const {
    return y > 0 ? y : relu ? MathsOf<S>(0) : y * slope;  // not infinity times 0
  }
  __device__ __forceinline__ MathsOf<S> derivative(MathsOf<S> y) const { return y > 0 ? 1 : slope; }
};

template <class T>
struct DenseRunning {
  T* mean;
  T* var;
  double momentum;
  double unbiased;  ///< m / (m - 1)

  __device__ __forceinline__ void move(int64_t c, double batch_mean, double batch_var) const {
    mean[c] = static_cast<T>((1 - momentum) * static_cast<double>(mean[c]) + momentum * batch_mean);
    var[c] = static_cast<T>((1 - momentum) * static_cast<double>(var[c]) + momentum * unbiased * batch_var);
  }
};

template <class S>
struct DenseBackwardArguments {
  const S* x;
  S* dz;
  MathsOf<S>* gradient;
  MathsOf<S>* dweight;
  MathsOf<S>* dbias;
  double* constant;
  double* per_deviation;
  bool makes_z;
  double m;

  __device__ __forceinline__ bool has_sums() const { return dweight || dbias || constant; }
};

/// y = (x - mean) * scale + shift of a panel's channels. The shift carries what of a mean does not fit.
template <class T, int kPanel>
struct DensePanel {
  alignas(16) T mean[kPanel];
  alignas(16) T scale[kPanel];
  alignas(16) T shift[kPanel];

  template <class S>
  __device__ __forceinline__ void set(int j, const DenseNormArguments<S>& norm, int64_t c) {
    const double scale_of_c = norm.scale(c);
    mean[j] = static_cast<T>(norm.mean[c]);
    scale[j] = static_cast<T>(scale_of_c);
    shift[j] = static_cast<T>(value_or(norm.bias, c, 0) - low_part<T>(norm.mean[c]) * scale_of_c);
  }
};

/// V values of the maths' type, 16 bytes at a time.
template <class S, int V>
struct MathsValues {
  using T = MathsOf<S>;
  static constexpr int kEach = V == 1 ? 1 : 16 / sizeof(T);
  Stored<T, kEach> parts[V / kEach];

  __device__ __forceinline__ void load(const T* from) {
    PALIMPSEST_UNROLL
    for (int p = 0; p < V / kEach; ++p) parts[p].load(from + p * kEach);
  }
  __device__ __forceinline__ void store(T* to) const {
    PALIMPSEST_UNROLL
    for (int p = 0; p < V / kEach; ++p) parts[p].store(to + p * kEach);
  }
  __device__ __forceinline__ T value(int i) const { return parts[i / kEach].value(i % kEach); }
  __device__ __forceinline__ void set_value(int i, T v) { parts[i / kEach].set_value(i % kEach, v); }
};

/// Vectors that a thread has under way in a kernel that reads `kTensors` at once, for at most 64 registers.
template <class Walk, int kTensors>
inline constexpr int kDenseUnroll = (Walk::kChannels > 1 ? 2 : 4) / kTensors;

template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    dense_normalize_kernel(DenseCut cut, DenseNormArguments<S> norm, DenseRunning<MathsOf<S>> running,
                           const S* x, S* z) {
  constexpr int kPanel = Walk::kPanelChannels, V = Walk::kVector, kEach = V / Walk::kChannels;
  constexpr int kUnroll = kDenseUnroll<Walk, 1>;
  PALIMPSEST_SHARED(panel_values, DensePanel<MathsOf<S>, kPanel>);
  const int panel = static_cast<int>(blockIdx.x % cut.panels),
            segment = static_cast<int>(blockIdx.x / cut.panels);
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.c) {
    panel_values.set(static_cast<int>(threadIdx.x), norm, channel);
    if (segment == 0 && running.mean) running.move(channel, norm.mean[channel], norm.var[channel]);
  }
  __syncthreads();
  const Walk walk(cut, panel);
  const int first = walk.first_channel();
  walk.template vectors<kUnroll>(
      cut.first_piece(segment), cut.first_piece(segment + 1), [&](const DensePlace(&at)[kUnroll]) {
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
            const int c = first + i / kEach;
            v[i] = norm.act((v[i] - panel_values.mean[c]) * panel_values.scale[c] + panel_values.shift[c]);
          }
          in[u].set(v);
          in[u].store(z + at[u].own);
        }
      });
}

/// What the sums of channel c mean for its parameters and for those before it.
template <class S>
__device__ __forceinline__ void write_dense_sums(const DenseBackwardArguments<S>& t,
                                                 const DenseNormArguments<S>& norm, int64_t c,
                                                 const GradientSums& sums) {
  using T = MathsOf<S>;
  const double inv_std = norm.inv_std(c), scale = norm.scale(c);
  const double dy_x = sums.dy_t - low_part<T>(norm.mean[c]) * sums.dy;
  if (t.dweight) t.dweight[c] = static_cast<T>(dy_x * inv_std);
  if (t.dbias) t.dbias[c] = static_cast<T>(sums.dy);
  if (!t.constant) return;
  t.constant[c] += scale * sums.dy / t.m;
  t.per_deviation[c] += scale * inv_std * inv_std * dy_x / t.m;
}

/// Of one vector: the gradient's part, z in dz's place, and what is added to the sums.
template <class Walk, class S, class Panel>
__device__ __forceinline__ void add_dense_gradient(const DenseBackwardArguments<S>& t,
                                                   const DenseNormArguments<S>& norm, const Panel& panel,
                                                   int first, const DensePlace& at,
                                                   ThreadSums<MathsOf<S>, Walk::kChannels>& own) {
  using T = MathsOf<S>;
  constexpr int V = Walk::kVector, kEach = V / Walk::kChannels, kPart = MathsValues<S, V>::kEach;
  Stored<S, V> x, dz;
  x.load(t.x + at.wide);
  dz.load(t.dz + at.own);
  PALIMPSEST_UNROLL
  for (int begin = 0; begin < V; begin += kPart) {
    Stored<T, kPart> g;
    if (t.gradient) g.load(t.gradient + at.wide + begin);
    PALIMPSEST_UNROLL
    for (int j = 0; j < kPart; ++j) {
      const int i = begin + j, c = first + i / kEach;
      const T away = x.value(i) - panel.mean[c], y = away * panel.scale[c] + panel.shift[c];
      const T dy = dz.value(i) * norm.derivative(y);
      own.dy[i / kEach] += dy;
      own.dy_t[i / kEach] += dy * away;
      g.set_value(j, g.value(j) + panel.scale[c] * dy);
      dz.set_value(i, norm.act(y));
    }
    if (t.gradient) g.store(t.gradient + at.wide + begin);
  }
  if (t.makes_z) dz.store(t.dz + at.own);
}

/// x and dz are read once, gradient read and written once.
template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    dense_normalize_backward_kernel(DenseCut cut, DenseNormArguments<S> norm, DenseBackwardArguments<S> t,
                                    Workspace workspace) {
  using T = MathsOf<S>;
  constexpr int kPanel = Walk::kPanelChannels;
  PALIMPSEST_SHARED(panel_values, DensePanel<T, kPanel>);
  PALIMPSEST_SHARED(place, BlockPlace[1]);
  int panel = static_cast<int>(blockIdx.x % cut.panels), segment = static_cast<int>(blockIdx.x / cut.panels);
  if (threadIdx.x == 0) place[0] = {panel, segment};
  if (threadIdx.x < kPanel && int64_t{panel} * kPanel + threadIdx.x < cut.c)
    panel_values.set(static_cast<int>(threadIdx.x), norm, int64_t{panel} * kPanel + threadIdx.x);
  __syncthreads();
  const Walk walk(cut, panel);
  const int first = walk.first_channel();
  ThreadSums<T, Walk::kChannels> own;
  walk.template vectors<1>(cut.first_piece(segment), cut.first_piece(segment + 1),
                           [&](const DensePlace(&at)[1]) {
                             // The panel's values are read again for each vector: held, they would take 24
                             // registers of 64.
                             forget_memory();
                             add_dense_gradient<Walk>(t, norm, panel_values, first, at[0], own);
                           });
  if (!t.has_sums()) return;
  GradientSums sums = block_sums<Walk>(own);
  panel = place[0].panel, segment = place[0].segment;
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  const bool mine = threadIdx.x < kPanel && channel < cut.c;
  if (cut.segments > 1) {
    auto* const records = static_cast<GradientSums*>(workspace.records);
    if (mine) records[segment * cut.c + channel] = sums;
    if (!is_last_block(workspace.counters + panel, static_cast<unsigned>(cut.segments))) return;
    sums = sum_segments<kPanel, kThreads>(records, cut.segments, cut.c, int64_t{panel} * kPanel);
  }
  if (mine) write_dense_sums(t, norm, channel, sums);
}

template <class S>
struct DenseFeatureArguments {
  const S* x;
  const MathsOf<S>* gradient;
  S* df;
  const double* mean;  ///< may be null
  const double* constant;
  const double* per_deviation;
};

template <class S, class Walk>
__global__ void __launch_bounds__(kThreads, 4)
    dense_feature_gradient_kernel(DenseCut cut, DenseFeatureArguments<S> t) {
  using T = MathsOf<S>;
  constexpr int kPanel = Walk::kPanelChannels, V = Walk::kVector, kEach = V / Walk::kChannels;
  constexpr int kUnroll = kDenseUnroll<Walk, 2>;
  PALIMPSEST_SHARED(panel_values, DensePanel<T, kPanel>);  // df = g - ((x - mean) * scale + shift)
  const int panel = static_cast<int>(blockIdx.x % cut.panels),
            segment = static_cast<int>(blockIdx.x / cut.panels);
  const int64_t channel = int64_t{panel} * kPanel + threadIdx.x;
  if (threadIdx.x < kPanel && channel < cut.c) {
    const double mean = t.mean ? t.mean[channel] : 0, by = t.per_deviation[channel];
    panel_values.mean[threadIdx.x] = static_cast<T>(mean);
    panel_values.scale[threadIdx.x] = static_cast<T>(by);
    panel_values.shift[threadIdx.x] = static_cast<T>(t.constant[channel] - low_part<T>(mean) * by);
  }
  __syncthreads();
  const Walk walk(cut, panel);
  const int first = walk.first_channel();
  walk.template vectors<kUnroll>(
      cut.first_piece(segment), cut.first_piece(segment + 1), [&](const DensePlace(&at)[kUnroll]) {
        Stored<S, V> x[kUnroll];
        MathsValues<S, V> g[kUnroll];
        PALIMPSEST_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          if (at[u].wide < 0) continue;
          x[u].load(t.x + at[u].wide);
          g[u].load(t.gradient + at[u].wide);
        }
        PALIMPSEST_UNROLL
        for (int u = 0; u < kUnroll; ++u) {
          if (at[u].wide < 0) continue;
          Values<S, V> v = x[u].values();
          PALIMPSEST_UNROLL
          for (int i = 0; i < V; ++i) {
            const int c = first + i / kEach;
            v[i] = g[u].value(i) -
                   ((v[i] - panel_values.mean[c]) * panel_values.scale[c] + panel_values.shift[c]);
          }
          x[u].set(v);
          x[u].store(t.df + at[u].own);
        }
      });
}

}  // namespace palimpsest::kernels::cuda
