#pragma once

namespace palimpsest::ops {

/// Whether the operators of this build take tensors on a GPU.
bool has_cuda_kernels();

}  // namespace palimpsest::ops
