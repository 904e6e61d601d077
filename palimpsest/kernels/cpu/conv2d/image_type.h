#pragma once

#include "palimpsest/kernels/conv2d.h"

#include <stdexcept>
#include <type_traits>

namespace palimpsest::kernels::cpu::conv2d {

/// Calls `function.template operator()<S>()` with the type of the values of x and y: float, Float16 or
/// BFloat16. Throws std::invalid_argument for f64, which no kernel takes.
template <class Function>
void dispatch_images(const Conv2dProblem& problem, const Function& function) {
  dispatch_float(problem.dtype, [&]<class S>() {
    if constexpr (std::is_same_v<S, double>)
      throw std::invalid_argument("the dtype of a convolution must be f32, f16 or bf16");
    else
      function.template operator()<S>();
  });
}

}  // namespace palimpsest::kernels::cpu::conv2d
