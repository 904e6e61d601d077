#pragma once

#include <stdexcept>
#include <string>

namespace palimpsest::kernels::cuda {

/// Throws the error of every function of kernels/cuda in a build without CUDA.
[[noreturn]] inline void refuse(const char* function) {
  throw std::invalid_argument(
      std::string("[") + function +
      "] requires CUDA, and this build has none: use tensors on the CPU, or build with nvcc 12.8 or later: "
      "'make build PRESET=cuda', for Python 'scripts/build_wheel --cuda'");
}

}  // namespace palimpsest::kernels::cuda
