#pragma once

#include "palimpsest/kernels/cuda/abn.h"
#include "palimpsest/kernels/dense_block.h"

#include <cstdint>

/// kernels/dense_block.h on NVIDIA GPUs, where the products are libtorch's: what is left is to make z, and to
/// bring dz back. z and dz exist for one layer at a time, (N, c, S) beside the buffer.
///   z[n,c,s] = act((x[n,c,s] - mean[c]) * scale[c] + shift[c]),   scale = weight / sqrt(var + eps)
/// Sums, corrections and parameters' gradients stay on the device. Every function is one launch on a stream
/// of the current device, which is not waited for; none allocates or reads device memory on the host, so all
/// can be captured in a CUDA graph. Two calls with the same arguments give the same bytes.
/// Without a CUDA compiler (no_cuda/) each throws std::invalid_argument, which says so. A tensor may have up
/// to 2^31 - 2^16 pixels, and in NCHW a plane's images as many vectors: else std::invalid_argument.
///
/// Tensors as kernels/dense_block.h has them, c channels of `total`; DenseProductProblem::out is not looked at.
namespace palimpsest::kernels::cuda {

/// (c) each, on the device.
struct DenseStatistics {
  const double* mean = nullptr;
  const double* var = nullptr;   ///< biased
  const void* weight = nullptr;  ///< accumulate_t of the dtype; null: 1
  const void* bias = nullptr;    ///< likewise; null: 0
  double eps = 0;
};

/// z from x; where `running` has pointers, those statistics move as well (kernels/abn.h).
void dense_normalize(const DenseProductProblem& layer, const DenseStatistics& norm,
                     const RunningStatistics& running, const void* x, void* z, Stream stream);

struct DenseNormalizeBackward {
  const void* x = nullptr;
  void* dz = nullptr;        ///< of the dtype; becomes z again, the bytes of dense_normalize, if makes_z
  bool makes_z = false;      ///< else it is only read
  void* gradient = nullptr;  ///< (N, total, S), accumulate_t: scale * dy is added; may be null
  void* dweight = nullptr;   ///< (c), accumulate_t: sum of dy * x-hat; may be null
  void* dbias = nullptr;     ///< likewise: sum of dy
  /// (c), f64, what DenseCorrection takes off at the end: scale * sum of dy / m and
  /// scale / (var + eps) * sum of dy * (x - mean) / m are added, m = N * S; both null where the statistics
  /// were constants.
  double* constant = nullptr;
  double* per_deviation = nullptr;
};

/// Bytes of Queue::workspace that dense_normalize_backward needs.
int64_t dense_workspace_bytes(const DenseProductProblem& layer);
/// dy = dz * act'(y), and what comes of it.
void dense_normalize_backward(const DenseProductProblem& layer, const DenseStatistics& norm,
                              const DenseNormalizeBackward& t, const Queue& queue);

/// As kernels::dense_feature_gradient; the vectors of `correction` on the device, a null mean stands for 0.
void dense_feature_gradient(const DenseFeatureProblem& features, const DenseCorrection& correction,
                            const void* x, const void* gradient, void* df, Stream stream);

}  // namespace palimpsest::kernels::cuda
