#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/cuda/stream.h"

#include <cstdint>

/// kernels/abn.h on NVIDIA GPUs: the same functions over device memory of the current device. Each returns
/// when its work is queued on a stream; none allocates, waits, or reads device memory on the host, so all of
/// them can be captured in a CUDA graph. At most two launches a call. Two calls with the same arguments give
/// the same bytes; devices with different amounts of shared memory may differ in the last digit.
/// Without a CUDA compiler (no_cuda/) each throws std::invalid_argument, which says so.
namespace palimpsest::kernels::cuda {

/// Where and with what a call works.
struct Queue {
  Stream stream = nullptr;
  /// abn_workspace_bytes of device memory, zero before its first use and used by one stream at a time. Every
  /// call leaves it fit for the next one, for any layer whose needs it covers.
  void* workspace = nullptr;
};

/// Bytes of workspace that calls for `layer` need: the sums that blocks leave for one another.
int64_t abn_workspace_bytes(const AbnProblem& layer);

void abn_statistics(const AbnProblem& layer, const void* x, double* mean, double* var, const Queue& queue);
/// What takes the place of statistics where running ones are frozen: their mean, and 1/sqrt(var + eps), of
/// `dtype` each. One launch.
void abn_frozen_statistics(DType dtype, int64_t channels, double eps, const void* running_mean,
                           const void* running_var, double* mean, double* inv_std, Stream stream);
void abn_apply(const AbnProblem& layer, const AbnForward& t, const Queue& queue);
/// One launch, and one reading of x, where a channel's values (or a panel's: some neighbouring channels in
/// channels-last) fit into the shared memory of a cluster of blocks; else two. The running statistics move in
/// the same launch.
void abn_forward(const AbnProblem& layer, double eps, const AbnForward& t, const RunningStatistics& running,
                 const Queue& queue);
void abn_recompute_output(const AbnProblem& layer, const AbnForward& t, const Queue& queue);
void abn_backward_reduce(const AbnProblem& layer, const AbnBackward& t, const Queue& queue);
void abn_backward_apply(const AbnProblem& layer, const AbnBackward& t, double m, const Queue& queue);
/// One launch, and one reading of what was kept and of dz, where both fit as abn_forward says and the
/// activation is leaky ReLU, ReLU or the identity (of f64: never); else two, whose bytes are those of reduce,
/// then apply.
void abn_backward(const AbnProblem& layer, const AbnBackward& t, const Queue& queue);

}  // namespace palimpsest::kernels::cuda
