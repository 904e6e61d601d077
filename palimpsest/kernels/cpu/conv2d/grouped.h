#pragma once

#include "palimpsest/kernels/conv2d.h"

/// Convolutions in narrow groups, by kernels made for them: a general library unrolls a group into a small
/// matrix product, which at 2 to 16 channels leaves most of a vector empty. Formulas, pointers and promises
/// are those of kernels/conv2d.h; no product with padding shows in a result, so a NaN or an infinity comes
/// out exactly where the formula takes it.
///
/// A vector holds neighbouring channels of one pixel. For input i of the group each pixel is spread first:
/// every lane gets input i of its own group, one shuffle inside the vector (or one broadcast where the group
/// is as wide as the vector), and is kept so for the three rows that read it. From there on every product of
/// the convolution is a lane of a multiply-add of whole vectors, into a row of pixels that stays in
/// registers.
namespace palimpsest::kernels::cpu {

/// Whether the three functions below take the layer: groups of 2, 4, 8 or 16 channels in and as many out, a
/// 3x3 kernel, dilation 1, the same stride of 1 or 2 and a padding of 0 to 2 in each dimension, as many
/// channels as the vectors of the instruction set in use have lanes, or more, and at least one output.
bool grouped_conv2d_fits(const Conv2dProblem& layer, Conv2dPass pass);

/// Memory: the weights once more, packed, kept by the calling thread; the weight's gradient, partial sums of
/// at most 8 MiB, or of the size of the weight if that is more.
void grouped_conv2d_forward(const Conv2dProblem& layer, const float* x, const float* w, float* y);
void grouped_conv2d_backward_input(const Conv2dProblem& layer, const float* dy, const float* w, float* dx);
void grouped_conv2d_backward_weight(const Conv2dProblem& layer, const float* x, const float* dy, float* dw);

}  // namespace palimpsest::kernels::cpu
