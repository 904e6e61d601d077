#pragma once

#include "palimpsest/kernels/conv2d.h"

/// 1x1 convolutions in one group, as products of matrices: pixels x channels times channels x channels.
namespace palimpsest::kernels::cpu::conv2d {

/// Returns whether pointwise_forward takes the problem: a 1x1 window without padding, one group, 16 channels
/// or more on both sides.
bool fits_pointwise_forward(const Conv2dProblem& problem);
/// The same for pointwise_backward_input, which needs stride 1.
bool fits_pointwise_backward_input(const Conv2dProblem& problem);

void pointwise_forward(const Conv2dProblem& problem, const void* x, const float* w, void* y);
void pointwise_backward_input(const Conv2dProblem& problem, const void* dy, const float* w, const void* x,
                              void* dx);

}  // namespace palimpsest::kernels::cpu::conv2d
