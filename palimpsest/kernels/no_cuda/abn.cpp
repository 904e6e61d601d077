#include "palimpsest/kernels/cuda/abn.h"

#include "palimpsest/kernels/no_cuda/refuse.h"

// kernels/cuda/abn.h for a build without CUDA.
namespace palimpsest::kernels::cuda {

int64_t abn_workspace_bytes(const AbnProblem&) {
  refuse("abn_workspace_bytes");
}
void abn_statistics(const AbnProblem&, const void*, double*, double*, const Queue&) {
  refuse("abn_statistics");
}
void abn_frozen_statistics(DType, int64_t, double, const void*, const void*, double*, double*, Stream) {
  refuse("abn_frozen_statistics");
}
void abn_apply(const AbnProblem&, const AbnForward&, const Queue&) {
  refuse("abn_apply");
}
void abn_forward(const AbnProblem&, double, const AbnForward&, const RunningStatistics&, const Queue&,
                 const SlotChoice*) {
  refuse("abn_forward");
}
int64_t abn_forward_workspace_bytes(const AbnProblem&, const SlotChoice*) {
  refuse("abn_forward_workspace_bytes");
}
void abn_recompute_output(const AbnProblem&, const AbnForward&, const Queue&) {
  refuse("abn_recompute_output");
}

void abn_backward_reduce(const AbnProblem&, const AbnBackward&, const Queue&) {
  refuse("abn_backward_reduce");
}
void abn_backward_apply(const AbnProblem&, const AbnBackward&, double, const Queue&) {
  refuse("abn_backward_apply");
}
void abn_backward(const AbnProblem&, const AbnBackward&, const Queue&) {
  refuse("abn_backward");
}

}  // namespace palimpsest::kernels::cuda
