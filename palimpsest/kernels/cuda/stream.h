#pragma once

struct CUstream_st;

namespace palimpsest::kernels::cuda {

/// CUDA's stream, by the name it has in CUDA's headers, which no caller needs. Null: the default stream.
using Stream = CUstream_st*;

/// Whether this build has kernels for GPUs: where not, all other functions of kernels/cuda throw.
bool is_built();

/// Whether what is queued on `stream` is recorded for a CUDA graph in place of being run.
bool is_capturing(Stream stream);

}  // namespace palimpsest::kernels::cuda
