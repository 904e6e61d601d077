#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"

#include <cstdint>

/// Two-dimensional convolution in groups, in f32, channels-last, without bias, for geometries where a special
/// kernel takes less time than a general library: 3x3 windows, narrow groups (2 to 16 channels, as in
/// ResNeXt), 1x1 windows, the weight gradient of depthwise convolutions, and that of any convolution whose
/// channels fill vectors. Images may lie in memory in 16 bits: the kernels widen values as they read them, and
/// round results once.
///   y[n,oh,ow,o]  = sum over ky, kx, i of x[n, ih, iw, g * C_in / groups + i] * w[o,ky,kx,i]
///   dx[n,ih,iw,c] = sum over the (o, ky, kx, oh, ow) that read x[n,ih,iw,c] of dy[n,oh,ow,o] * w[o,ky,kx,i]
///   dw[o,ky,kx,i] = sum over n, oh, ow of dy[n,oh,ow,o] * x[n, ih, iw, g * C_in / groups + i]
/// where ih = oh * stride.h - padding.h + ky * dilation.h, and iw likewise. Pixels outside of the image are
/// zero. Output channel o lies in group g = o / (C_out / groups).
///
/// Pointers: x, dx (N, in.h, in.w, C_in) and y, dy (N, out.h, out.w, C_out) in problem.dtype: f32, f16 or
/// bf16; w, dw (C_out, kernel_size.h, kernel_size.w, C_in / groups) in f32; contiguous in this order, which is
/// libtorch's channels-last; aligned as their values. Every element of the result is written.
/// NaN and infinity spread as in the formula, except at the padding: a zero of the padding may be multiplied,
/// and gives NaN if the other factor is NaN or infinite; and except for has_winograd's problems, which may give
/// NaN for values that are infinite or above a quarter of the largest float, and spread NaN over all nine
/// weights of a pair of channels in dw.
/// Sums are f32, in an order that depends on the shape, the dtype and the instruction set only, so any number of
/// threads gives the same bytes. Results in 16 bits are those of the same kernel on the same values in f32,
/// rounded; for some shapes f32 has another kernel.
namespace palimpsest::kernels {

/// The problem of one call: its geometry.
struct Conv2dProblem {
  int64_t n = 0, c_in = 0, c_out = 0, groups = 1;
  Pair2 in, out, kernel_size, stride, padding{0, 0}, dilation;
  /// The convolution reads max(x, 0) in place of x, whose producer left the ReLU to its readers: dw and dx are
  /// those of this function of x, and dx is 0 where x <= 0. has_conv2d says which kernels do so.
  bool relu_x = false;
  DType dtype = DType::f32;  ///< of x, y and their gradients

  int64_t group_in() const { return c_in / groups; }
  int64_t group_out() const { return c_out / groups; }
  int64_t weights() const { return c_out * kernel_size.h * kernel_size.w * group_in(); }
};

/// Returns the outputs along one dimension of `size` pixels; 0 if the window does not fit.
constexpr int64_t convolved_size(int64_t size, int64_t kernel_size, int64_t stride, int64_t padding,
                                 int64_t dilation) {
  const int64_t room = size + 2 * padding - dilation * (kernel_size - 1) - 1;
  return room < 0 ? 0 : room / stride + 1;
}

/// The three computations of a convolution.
enum class Conv2dPass { kForward, kBackwardInput, kBackwardWeight };

namespace cpu {

/// Returns whether the instruction set in use has a kernel for the pass. The functions below require such a
/// kernel, n >= 1, and `out` as convolved_size gives it.
bool has_conv2d(const Conv2dProblem& problem, Conv2dPass pass);

/// Returns whether all three passes run with 4/9 of the multiplications (cpu/conv2d/winograd.h): 3x3 windows,
/// stride 1, groups of 16 channels or more, and enough pixels.
bool has_winograd(const Conv2dProblem& problem);

/// The three passes. Memory: a packed copy of the weights, or at most 8 MiB (or 32 channels) of transformed
/// ones; for conv2d_backward_weight at most 8 MiB (or one dw) of partial sums; and packed blocks of x and dy
/// per thread. The threads keep this memory for their next calls.
/// `x` of conv2d_backward_input is read if problem.relu_x, and may be null otherwise.
void conv2d_forward(const Conv2dProblem& problem, const void* x, const float* w, void* y);
void conv2d_backward_input(const Conv2dProblem& problem, const void* dy, const float* w, const void* x,
                           void* dx);
void conv2d_backward_weight(const Conv2dProblem& problem, const void* x, const void* dy, float* dw);

}  // namespace cpu

/// The same functions in f32 for any geometry as plain loops in double, rounded once: the reference of the
/// tests.
namespace reference {

void conv2d_forward(const Conv2dProblem& problem, const float* x, const float* w, float* y);
void conv2d_backward_input(const Conv2dProblem& problem, const float* dy, const float* w, const float* x,
                           float* dx);
void conv2d_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw);

}  // namespace reference
}  // namespace palimpsest::kernels
