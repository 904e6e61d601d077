#pragma once

#include "palimpsest/kernels/conv2d.h"

/// The gradient of a convolution's weight as a matrix product, (C_out x pixels) times (pixels x C_in), for
/// every position of the window, where groups of channels fill vectors. It takes 0.7 to 1.0 of libtorch's
/// time for 1x1 windows, strides and few pixels, and 1.0 to 1.15 for 3x3 windows over many pixels
/// (bench_convolution_time).
namespace palimpsest::kernels::cpu::conv2d {

/// Returns whether groups are wide enough: 32 channels in, 16 out. Any window, stride, padding and dilation
/// will do.
bool fits_weight_gradient(const Conv2dProblem& problem);

/// Runs conv2d_backward_weight for such a problem.
void weight_gradient(const Conv2dProblem& problem, const void* x, const void* dy, float* dw);

}  // namespace palimpsest::kernels::cpu::conv2d
