#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"

#include <cstdint>

/// Max pooling over the two last dimensions of (N, C, H, W), keeping one byte an output for backward.
///   z[n,c,oh,ow]      = max of x[n, c, oh*stride - padding + ky*dilation, ow*stride - padding + kx*dilation]
///   argmax[n,c,oh,ow] = ky * kernel.w + kx of that maximum, or kNoPosition where the window lies in the
///                       padding altogether
/// over the positions (ky, kx) of the window that lie in the image. Of equal values the first in row order
/// counts (-0 and +0 are equal); a NaN is above any number, and the last NaN counts: libtorch's rules, so
/// that values and the place where a gradient goes are libtorch's own.
///
/// Pointers: x, dx (N, C, H, W); z, dz, argmax (N, C, out.h, out.w); all dense in the same `layout`, no
/// alignment required. x, z, dz, dx of any DType: f16 and bf16 are compared as they are (rounding is not
/// involved) and their gradients added in f32 and rounded once.
/// Memory: of the calling threads, kept for their next calls: a few rows of the input going forward in NCHW;
/// going backward, in NCHW with 16-bit storage a plane in f32, else lists of H + W windows.
/// The result has the same bytes for any number of threads.
namespace palimpsest::kernels {

struct PoolWindow {
  Pair2 kernel, stride, padding, dilation;

  int64_t positions() const { return kernel.h * kernel.w; }
};

/// A window has at most this many positions: argmax is a byte.
inline constexpr int64_t kMaxPoolPositions = 255;
/// The argmax of a window that holds no pixel: z is -infinity there and no gradient goes anywhere.
inline constexpr uint8_t kNoPosition = 255;

/// What one call works on. Requires: 1 <= window.positions() <= kMaxPoolPositions; kernel, stride and
/// dilation positive; 0 <= padding <= kernel / 2; out as pooled_size says.
struct MaxPoolProblem {
  int64_t n = 0, c = 0;
  Pair2 in, out;
  PoolWindow window;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;

  int64_t planes() const { return n * c; }
};

/// Outputs along one dimension of `size` pixels: the windows that begin in steps of `stride` from -padding
/// and end within the padding behind; with `ceil_mode` also a last one that reaches beyond, if it begins on a
/// pixel or in the padding before. At most 0 where no window fits. Int: int64_t, or libtorch's symbolic
/// integer.
template <class Int>
Int pooled_size(const Int& size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                bool ceil_mode) {
  const Int room = size + Int(2 * padding - dilation * (kernel - 1) - 1);
  if (ceil_mode) {
    const Int last = (room + Int(stride - 1)) / Int(stride);  // the number of the last window
    if (room < Int(1 - stride)) return Int(0);
    return last * Int(stride) >= size + Int(padding) ? last : last + Int(1);
  }
  return room < Int(0) ? Int(0) : room / Int(stride) + Int(1);
}

namespace cpu {

/// Writes z and, unless it is null, argmax.
void max_pool_forward(const MaxPoolProblem& layer, const void* x, void* z, uint8_t* argmax);

/// dx[n,c,ih,iw] = sum of dz over the windows whose argmax is that pixel, in row order of the windows; every
/// element of dx is written. `argmax` is max_pool_forward's; other bytes send a
/// gradient to a wrong pixel or to none, but never outside dx.
void max_pool_backward(const MaxPoolProblem& layer, const void* dz, const uint8_t* argmax, void* dx);

}  // namespace cpu

/// The same as plain loops in double: the truth of the tests.
namespace reference {

void max_pool_forward(const MaxPoolProblem& layer, const void* x, void* z, uint8_t* argmax);
void max_pool_backward(const MaxPoolProblem& layer, const void* dz, const uint8_t* argmax, void* dx);

}  // namespace reference
}  // namespace palimpsest::kernels
