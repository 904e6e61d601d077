#pragma once

#include "palimpsest/kernels/conv2d.h"

/// The gradient of the weight of depthwise convolutions, in which each channel is a group of its own. A vector
/// holds neighbouring channels of one pixel, and the sums of a window's taps stay in registers along a row. It
/// takes 0.1 to 0.6 of libtorch's time (bench_convolution_time).
namespace palimpsest::kernels::cpu::conv2d {

/// Returns whether depthwise_backward_weight takes the problem: groups of 1 channel in and out, a window 3, 5,
/// 7, 9 or 11 pixels wide and of any height, any stride and dilation, no negative padding, at least as many
/// channels as a vector of the instruction set in use has lanes, and at least one output.
bool fits_depthwise(const Conv2dProblem& problem);

/// Runs conv2d_backward_weight for such a problem. A NaN or an infinity appears exactly where the formula takes
/// it. Memory: partial sums of at most 8 MiB, or of the size of the weight if that is more.
void depthwise_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw);

}  // namespace palimpsest::kernels::cpu::conv2d
