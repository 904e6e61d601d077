#include "palimpsest/kernels/cuda/dense_block.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/dense_block.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

void dense_normalize(const DenseProductProblem&, const DenseStatistics&, const RunningStatistics&,
                     const void*, void*, Stream) {
  refuse("dense_normalize");
}
int64_t dense_workspace_bytes(const DenseProductProblem&) {
  refuse("dense_workspace_bytes");
}
void dense_normalize_backward(const DenseProductProblem&, const DenseStatistics&,
                              const DenseNormalizeBackward&, const Queue&) {
  refuse("dense_normalize_backward");
}
void dense_feature_gradient(const DenseFeatureProblem&, const DenseCorrection&, const void*, const void*,
                            void*, Stream) {
  refuse("dense_feature_gradient");
}

}  // namespace palimpsest::kernels::cuda
