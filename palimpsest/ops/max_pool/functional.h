#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <tuple>

/// The passes of max_pool2d without autograd. They go through libtorch's dispatcher, so tracing records them.
namespace palimpsest::ops::max_pool_detail {

/// The pooling window: two numbers each, height before width.
struct WindowArguments {
  at::IntArrayRef kernel_size, stride, padding, dilation;
};

/// Returns z and its argmax: one byte per output, in the shape and memory format of z; shape (0) unless
/// `for_backward`. x: (N, C, H, W).
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const WindowArguments& window, bool ceil_mode,
                                           bool for_backward);

/// Returns the gradient of an x of `height` x `width` pixels, contiguous or (if `channels_last`)
/// channels-last.
at::Tensor backward(const at::Tensor& dz, const at::Tensor& argmax, const WindowArguments& window,
                    const c10::SymInt& height, const c10::SymInt& width, bool channels_last);

}  // namespace palimpsest::ops::max_pool_detail
