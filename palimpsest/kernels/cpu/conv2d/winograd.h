#pragma once

#include "palimpsest/kernels/conv2d.h"

/// 3x3 convolutions of stride 1, in wide groups or none, with 4/9 of the multiplications: outputs are computed in tiles of 2x2, from
/// transformed inputs and weights (winograd_kernels.h). Rounding errors are those of the plain sum or smaller,
/// measured against the largest terms of the sum (docs/numerics.md). An input that is infinite or above a quarter of the
/// largest float may give NaN where the plain sum gives infinity.
namespace palimpsest::kernels::cpu::conv2d {

/// Returns whether all three passes take the problem: a 3x3 window, stride 1, and groups of 16 to
/// 16,384 channels on both sides. Any padding and dilation will do.
bool fits_winograd(const Conv2dProblem& problem);
/// Returns whether such a problem has enough pixels to make up for the transforms of the weights.
bool winograd_saves_time(const Conv2dProblem& problem);

void winograd_forward(const Conv2dProblem& problem, const void* x, const float* w, void* y);
void winograd_backward_input(const Conv2dProblem& problem, const void* dy, const float* w, const void* x,
                             void* dx);
void winograd_backward_weight(const Conv2dProblem& problem, const void* x, const void* dy, float* dw);

}  // namespace palimpsest::kernels::cpu::conv2d
