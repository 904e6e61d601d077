#pragma once

#include "palimpsest/kernels/conv2d.h"

/// Convolutions in narrow groups. A general library turns a group into a small matrix product, which at 2 to
/// 16 channels leaves most of a vector empty. Formulas, pointers and promises are those of kernels/conv2d.h,
/// and more: no product with padding shows in a result, so that a NaN or an infinity appears exactly where
/// the formula takes it.
///
/// A vector holds neighbouring channels of one pixel. For input i of the group each pixel is first spread:
/// every lane gets input i of its own group, by one shuffle inside the vector (or one broadcast where the
/// group is as wide as the vector). The spread pixel serves the three rows that read it. Every product of the
/// convolution is then a lane of a multiply-add of whole vectors into a row of pixels that stays in
/// registers.
namespace palimpsest::kernels::cpu::conv2d {

/// Returns whether the three functions below take the problem: groups of 2, 4, 8 or 16 channels in and as
/// many out, a 3x3 window, dilation 1, the same stride of 1 or 2 and a padding of 0 to 2 in each dimension,
/// at least as many channels as a vector of the instruction set in use has lanes, and at least one output.
bool fits_grouped(const Conv2dProblem& problem);

/// Memory: the calling thread keeps the packed weights; grouped_backward_weight takes partial sums of at most
/// 8 MiB, or of the size of the weight if that is more.
void grouped_forward(const Conv2dProblem& problem, const float* x, const float* w, float* y);
void grouped_backward_input(const Conv2dProblem& problem, const float* dy, const float* w, float* dx);
void grouped_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw);

}  // namespace palimpsest::kernels::cpu::conv2d
