#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/cuda/queue.h"
#include "palimpsest/kernels/dense_block.h"

#include <cstdint>

/// kernels/dense_block.h on NVIDIA GPUs. The 1x1 convolution is libtorch's; these functions make its input z
/// and take its gradient dz. z and dz, (N, c, S) and contiguous, exist for one layer at a time:
///   z[n,c,s] = act((x[n,c,s] - mean[c]) * scale[c] + shift[c]),   scale = weight / sqrt(var + eps)
/// Pointers are those of kernels/dense_block.h, in memory of the current device. DenseProductProblem::out is
/// ignored. Each function is one launch, and returns as soon as it is queued. It allocates
/// nothing but the counters of a new stream (device/counters.h), never waits for the device, and never reads
/// device memory on the host: all can be captured in a CUDA graph.
/// Two calls with the same arguments give the same bytes.
/// Errors: std::invalid_argument for more than 2^31 - 2^16 pixels; std::runtime_error if the launch fails. A
/// build without CUDA (no_cuda/) always throws std::invalid_argument.
namespace palimpsest::kernels::cuda {

/// A layer's statistics and parameters, (c) each.
struct DenseStatistics {
  const double* mean = nullptr;
  const double* var = nullptr;   ///< biased
  const void* weight = nullptr;  ///< accumulate_t of the dtype; null: 1
  const void* bias = nullptr;    ///< likewise; null: 0
  double eps = 0;
};

/// Writes z. Moves the running statistics (kernels/abn.h) as well, unless their pointers are null.
void dense_normalize(const DenseProductProblem& problem, const DenseStatistics& norm,
                     const RunningStatistics& running, const void* x, void* z, Stream stream);

struct DenseNormalizeBackward {
  const void* x = nullptr;
  void* dz = nullptr;        ///< of the dtype; becomes z again, with the bytes of dense_normalize, if makes_z
  bool makes_z = false;      ///< else dz is only read
  void* gradient = nullptr;  ///< (N, total, S), accumulate_t: scale * dy is added; may be null
  void* dweight = nullptr;   ///< (c), accumulate_t: sum of dy * x-hat; may be null
  void* dbias = nullptr;     ///< (c), accumulate_t: sum of dy; may be null
  /// (c), f64: the vectors of DenseCorrection, to which every reader adds. With m = N * S,
  ///   constant      += scale * sum of dy / m
  ///   per_deviation += scale / (var + eps) * sum of dy * (x - mean) / m
  /// Both are null if the statistics were constants.
  double* constant = nullptr;
  double* per_deviation = nullptr;
};

/// Returns the bytes of Queue::workspace that dense_normalize_backward needs; may be 0.
int64_t dense_workspace_bytes(const DenseProductProblem& problem);

/// Writes those outputs of `backward` that are not null, from dy = dz * act'(y).
void dense_normalize_backward(const DenseProductProblem& problem, const DenseStatistics& norm,
                              const DenseNormalizeBackward& backward, const Queue& queue);

/// Does the same as kernels::cpu::dense_feature_gradient. A null correction.mean means 0.
void dense_feature_gradient(const DenseFeatureProblem& problem, const DenseCorrection& correction,
                            const void* x, const void* gradient, void* df, Stream stream);

}  // namespace palimpsest::kernels::cuda
