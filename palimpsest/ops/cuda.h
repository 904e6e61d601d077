#pragma once

namespace palimpsest::ops {

/// Returns whether the operators of this build take tensors on a GPU.
bool has_cuda_kernels();

}  // namespace palimpsest::ops
