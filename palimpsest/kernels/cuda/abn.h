#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/channel_slots.h"
#include "palimpsest/kernels/cuda/queue.h"

#include <cstdint>

/// kernels/abn.h on NVIDIA GPUs: the functions of cpu and reference over memory of the current device.
/// Each function returns as soon as its work is queued. It allocates nothing but the counters of a new stream
/// (device/counters.h), never waits for the device, and never reads device memory on the host: all can be
/// captured in a CUDA graph. A call makes at most two launches, and
/// abn_forward one more for a choice of channels. Two calls with the same arguments give the
/// same bytes. Devices with different amounts of shared memory or multiprocessors may differ in the last
/// digit.
/// Errors: std::invalid_argument for a channel of more than 2^31 - 2^16 vectors of 16 bytes, and for as many
/// pixels (in NCHW: of one image); std::runtime_error if a launch fails. A build without CUDA (no_cuda/)
/// always throws std::invalid_argument.
namespace palimpsest::kernels::cuda {

/// Returns the bytes of Queue::workspace that calls for `problem` need, for the sums that blocks exchange.
/// 0: each block has a panel for itself.
int64_t abn_workspace_bytes(const AbnProblem& problem);

void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var, const Queue& queue);

/// Computes the statistics of a frozen layer: mean = running_mean, inv_std = 1 / sqrt(running_var + eps).
/// running_mean, running_var: (channels), `dtype`, no alignment required. One launch.
void abn_frozen_statistics(DType dtype, int64_t channels, double eps, const void* running_mean,
                           const void* running_var, double* mean, double* inv_std, Stream stream);

void abn_apply(const AbnProblem& problem, const AbnForward& forward, const Queue& queue);

/// Does the same as kernels::cpu::abn_forward, and moves the running statistics unless their pointers are
/// null. One launch reads x once if a channel (in channels-last: a few neighbouring channels) fits into the
/// shared memory of a cluster of blocks, and if the device runs enough clusters at once (device/clusters.h);
/// otherwise it makes two launches.
/// `choice`: null, or a choice of channels (kernels/cuda/channel_slots.h) that is made on the way. It takes
/// one block or cluster more of the first launch, unless there is a residual to sample, an index to fill or
/// more than kMostReportedChannels channels: then choose_slots makes it first, with a launch of its own.
void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward,
                 const RunningStatistics& running, const Queue& queue, const SlotChoice* choice = nullptr);

/// Returns the bytes of Queue::workspace that abn_forward needs.
int64_t abn_forward_workspace_bytes(const AbnProblem& problem, const SlotChoice* choice);

/// The most channels that one block counts: 16 per thread, in less time than the smallest launch beside it
/// takes.
inline constexpr int64_t kMostReportedChannels = 4096;

void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward, const Queue& queue);
void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward, const Queue& queue);
void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m, const Queue& queue);

/// Does the same as kernels::cpu::abn_backward. One launch reads the saved values and dz once if both fit
/// into shared memory as abn_forward requires, the activation is leaky ReLU, ReLU or the identity, and the
/// dtype is not f64, and the statistics are not frozen. Otherwise it makes two launches, with the bytes of abn_backward_reduce and
/// abn_backward_apply.
void abn_backward(const AbnProblem& problem, const AbnBackward& backward, const Queue& queue);

}  // namespace palimpsest::kernels::cuda
