#pragma once

struct CUstream_st;

namespace palimpsest::kernels::cuda {

/// CUDA's stream, by the name it has in CUDA's headers, which no caller needs. Null: the default stream.
using Stream = CUstream_st*;

}  // namespace palimpsest::kernels::cuda
