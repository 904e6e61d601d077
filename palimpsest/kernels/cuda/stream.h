#pragma once

#include <cstddef>

struct CUstream_st;

namespace palimpsest::kernels::cuda {

/// CUDA's cudaStream_t, so that callers do not need CUDA's headers. Null: the default stream.
using Stream = CUstream_st*;

/// Returns whether this build has kernels for GPUs. If not, all other functions of kernels/cuda throw.
bool is_built();

/// Returns zeroed memory of the host that the device writes while the host reads it. It is never freed.
void* mapped_host_memory(std::size_t bytes);

/// Returns whether the work queued on `stream` is recorded for a CUDA graph instead of being run.
bool is_capturing(Stream stream);

}  // namespace palimpsest::kernels::cuda
