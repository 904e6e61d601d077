#pragma once

#include "palimpsest/kernels/conv2d.h"

/// The gradient of a convolution's weight as a product of matrices, (C_out x pixels) times (pixels x C_in)
/// for every position of the kernel: for groups of channels that fill vectors. Against libtorch it takes 0.7
/// to 1.0 of the time for 1x1 kernels, strides and few pixels, and 1.0 to 1.15 for 3x3 kernels over many
/// (bench_convolution_time).
namespace palimpsest::kernels::cpu {

/// Whether groups are wide enough: 32 channels in, 16 out. Any kernel, stride, padding and dilation.
bool conv2d_weight_fits(const Conv2dProblem& layer);

/// conv2d_backward_weight of such a layer.
void conv2d_weight(const Conv2dProblem& layer, const float* x, const float* dy, float* dw);

}  // namespace palimpsest::kernels::cpu
