#pragma once

#include "palimpsest/kernels/channel_slots.h"
#include "palimpsest/kernels/cuda/queue.h"

#include <cstdint>

/// kernels/channel_slots.h on NVIDIA GPUs, with the guarantees of kernels/cuda/abn.h. `report` lies in memory
/// of mapped_host_memory (stream.h), so that the host can read it at any time. The device writes it in
/// replays of a CUDA graph, too.
namespace palimpsest::kernels::cuda {

/// Returns the bytes of Queue::workspace that a call for `problem` needs.
int64_t choose_slots_workspace_bytes(const AbnProblem& problem);

/// One launch, which a forward pass can do without (abn_forward). The sums over the residual's sample have
/// another order than on a CPU.
void choose_slots(const AbnProblem& problem, const ChannelSlots& tensors, const Queue& queue);

/// One launch per 2^31 - 1 values of `part`, in whole images. An index that names no channel gathers zeros, and
/// scatters nothing. Error: std::invalid_argument, "[abn] ...", if one image of `part` has more values.
void gather_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* full,
                     void* part, Stream stream);
void scatter_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* part,
                      void* full, Stream stream);

}  // namespace palimpsest::kernels::cuda
