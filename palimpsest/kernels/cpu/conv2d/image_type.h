#pragma once

#include "palimpsest/kernels/conv2d.h"

#include <stdexcept>

namespace palimpsest::kernels::cpu::conv2d {

/// Calls `function.template operator()<S>()` with the type of the values of x and y: float, Float16 or
/// BFloat16. Throws std::invalid_argument for f64, which no kernel takes.
template <class Function>
void dispatch_images(const Conv2dProblem& problem, const Function& function) {
  switch (problem.dtype) {
    case DType::f32:
      return function.template operator()<float>();
    case DType::f16:
      return function.template operator()<Float16>();
    case DType::bf16:
      return function.template operator()<BFloat16>();
    default:
      throw std::invalid_argument("the dtype of a convolution must be f32, f16 or bf16");
  }
}

}  // namespace palimpsest::kernels::cpu::conv2d
