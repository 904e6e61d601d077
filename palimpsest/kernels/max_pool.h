#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"

#include <cstdint>

/// Max pooling over the two last dimensions of (N, C, H, W) that saves one byte per output for backward.
///   z[n,c,oh,ow]      = max of x[n, c, oh*stride - padding + ky*dilation, ow*stride - padding + kx*dilation]
///   argmax[n,c,oh,ow] = ky * kernel_size.w + kx of that maximum, or kNoPosition where the whole window lies
///                       in the padding
/// over the positions (ky, kx) of the window that lie in the image. The first of equal values in row order
/// counts (-0 and +0 are equal). A NaN is above any number, and the last NaN counts. These are libtorch's
/// rules, so values and the places of gradients are libtorch's.
///
/// Pointers: x, dx (N, C, H, W); z, dz, argmax (N, C, out.h, out.w). All are contiguous in the same `layout`;
/// no alignment is required. x, z, dz, dx have any DType. f16 and bf16 are compared without rounding; their
/// gradients are added in f32 and rounded once.
/// Memory: forward takes a few rows of the input in NCHW; backward takes a plane in f32 (NCHW, 16-bit
/// storage) or a list of windows per row and column of the image. Both grow with a stride or dilation that leads out of
/// the image: the caller makes those small (ops/max_pool). The calling threads keep this memory for their next calls.
/// The result has the same bytes for any number of threads.
namespace palimpsest::kernels {

struct PoolWindow {
  Pair2 kernel_size, stride, padding, dilation;

  int64_t positions() const { return kernel_size.h * kernel_size.w; }
};

/// A window has at most this many positions, because argmax is a byte.
inline constexpr int64_t kMaxPoolPositions = 255;
/// Strides and dilations are at most this, as libtorch's: no product with a kernel size overflows.
inline constexpr int64_t kMaxPoolStep = 0x7fffffff;
/// The argmax of a window that holds no pixel: z is -infinity there and no gradient goes anywhere.
inline constexpr uint8_t kNoPosition = 255;

/// The problem of one call. Requires: 1 <= window.positions() <= kMaxPoolPositions; kernel_size, stride and
/// dilation positive, the last two at most kMaxPoolStep; 0 <= padding <= kernel_size / 2; `out` as
/// pooled_size gives it.
struct MaxPoolProblem {
  int64_t n = 0, c = 0;
  Pair2 in, out;
  PoolWindow window;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;

  int64_t planes() const { return n * c; }
};

/// Returns the outputs along one dimension of `size` pixels; 0 or less if no window fits. Windows begin in
/// steps of `stride` from -padding and end within the padding behind the image. With `ceil_mode` one more
/// window may reach beyond this padding, if it begins in the image or in the padding before the image.
/// Int: int64_t, or libtorch's symbolic integer.
template <class Int>
Int pooled_size(const Int& size, int64_t kernel_size, int64_t stride, int64_t padding, int64_t dilation,
                bool ceil_mode) {
  const Int room = size + Int(2 * padding - dilation * (kernel_size - 1) - 1);
  if (ceil_mode) {
    const Int last = (room + Int(stride - 1)) / Int(stride);  // the number of the last window
    if (room < Int(1 - stride)) return Int(0);
    return last * Int(stride) >= size + Int(padding) ? last : last + Int(1);
  }
  return room < Int(0) ? Int(0) : room / Int(stride) + Int(1);
}

namespace cpu {

/// Writes z and, unless it is null, argmax.
void max_pool_forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax);

/// Computes dx[n,c,ih,iw] = sum of dz over the windows whose argmax is this pixel, in row order of the
/// windows; writes every element of dx. `argmax` comes from max_pool_forward; other bytes send a gradient to
/// a wrong pixel or to none, but never outside of dx.
void max_pool_backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx);

}  // namespace cpu

/// The same functions as plain loops in double, which are the reference of the tests.
namespace reference {

void max_pool_forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax);
void max_pool_backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx);

}  // namespace reference
}  // namespace palimpsest::kernels
