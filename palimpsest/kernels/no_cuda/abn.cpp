#include "palimpsest/kernels/cuda/abn.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/abn.h where the build has no CUDA compiler.
namespace palimpsest::kernels::cuda {

int64_t abn_workspace_bytes(const AbnLayer&) {
  refuse("abn_workspace_bytes");
}
void abn_statistics(const AbnLayer&, const void*, double*, double*, const Queue&) {
  refuse("abn_statistics");
}
void abn_frozen_statistics(DType, int64_t, double, const void*, const void*, double*, double*, Stream) {
  refuse("abn_frozen_statistics");
}
void abn_apply(const AbnLayer&, const AbnForward&, const Queue&) {
  refuse("abn_apply");
}
void abn_forward(const AbnLayer&, double, const AbnForward&, const RunningStatistics&, const Queue&) {
  refuse("abn_forward");
}
void abn_rebuild(const AbnLayer&, const AbnForward&, const Queue&) {
  refuse("abn_rebuild");
}

void abn_backward_reduce(const AbnLayer&, const AbnBackward&, const Queue&) {
  refuse("abn_backward_reduce");
}
void abn_backward_apply(const AbnLayer&, const AbnBackward&, double, const Queue&) {
  refuse("abn_backward_apply");
}
void abn_backward(const AbnLayer&, const AbnBackward&, const Queue&) {
  refuse("abn_backward");
}

}  // namespace palimpsest::kernels::cuda
