#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

/// Max pooling that saves one byte per output for backward; libtorch's saves eight bytes and the input.
///   z[n,c,oh,ow] = max of x[n, c, oh*stride - padding + ky*dilation, ow*stride - padding + kx*dilation]
/// Values, gradients, ties, NaN, padding rules, ceil_mode and memory format of the output are those of
/// at::max_pool2d (kernels/max_pool.h states them). One thing differs: 16-bit gradients of overlapping
/// windows are added in f32 and rounded once; libtorch rounds after each addition.
/// Python: torch.ops.palimpsest.max_pool2d.
///
/// x:       (N, C, H, W) or (C, H, W); f32, f64, f16 or bf16. N may be 0. Contiguous and channels-last
///          tensors run natively; any other strides cost one copy.
/// kernel_size, stride, padding, dilation: one or two numbers, height before width. An empty stride means the
///          kernel size. A window has at most 255 positions.
/// Gradient: x. Double backward is an error.
/// Errors: c10::Error "[max_pool2d] requirement, got value" for every argument that does not fit.
namespace palimpsest::ops {

at::Tensor max_pool2d(const at::Tensor& x, at::IntArrayRef kernel_size, at::IntArrayRef stride = {},
                      at::IntArrayRef padding = 0, at::IntArrayRef dilation = 1, bool ceil_mode = false);

}  // namespace palimpsest::ops
