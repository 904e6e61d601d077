#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>

#include <tuple>

/// The operators under max_pool2d: functional, without autograd, with CPU, CUDA and Meta kernels, so that
/// tracing records them as they are. The functions here go through libtorch's dispatcher to them;
/// register_max_pool.cpp holds the schemas.
namespace palimpsest::ops {

/// The pooling window as the operators carry it: two numbers each, height before width.
struct PoolArguments {
  at::IntArrayRef kernel_size, stride, padding, dilation;
};

/// z and its argmax, bytes of z's shape and memory format; (0) unless `for_backward`. x has 4 dimensions.
std::tuple<at::Tensor, at::Tensor> call_max_pool_forward(const at::Tensor& x, const PoolArguments& window,
                                                         bool ceil_mode, bool for_backward);

/// The gradient of an x of `height` x `width` pixels; dense in the memory format that is asked for.
at::Tensor call_max_pool_backward(const at::Tensor& dz, const at::Tensor& argmax, const PoolArguments& window,
                                  const c10::SymInt& height, const c10::SymInt& width, bool channels_last);

#define PALIMPSEST_POOL_WINDOW \
  at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation

namespace dense {
std::tuple<at::Tensor, at::Tensor> max_pool2d_forward(const at::Tensor& x, PALIMPSEST_POOL_WINDOW,
                                                      bool ceil_mode, bool for_backward);
at::Tensor max_pool2d_backward(const at::Tensor& dz, const at::Tensor& argmax, PALIMPSEST_POOL_WINDOW,
                               int64_t height, int64_t width, bool channels_last);
}  // namespace dense

namespace meta {
std::tuple<at::Tensor, at::Tensor> max_pool2d_forward(const at::Tensor& x, PALIMPSEST_POOL_WINDOW,
                                                      bool ceil_mode, bool for_backward);
at::Tensor max_pool2d_backward(const at::Tensor& dz, const at::Tensor& argmax, PALIMPSEST_POOL_WINDOW,
                               c10::SymInt height, c10::SymInt width, bool channels_last);
}  // namespace meta

}  // namespace palimpsest::ops
