#pragma once

#include "palimpsest/ops/max_pool/functional.h"

/// The passes of functional.h as schema.cpp registers them: `native` runs on CPU and CUDA tensors, `meta`
/// gives the shapes and strides that tracing and export see.
namespace palimpsest::ops::max_pool_detail {

namespace native {
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const WindowArguments& window, bool ceil_mode,
                                           bool for_backward);
at::Tensor backward(const at::Tensor& dz, const at::Tensor& argmax, const WindowArguments& window,
                    int64_t height, int64_t width, bool channels_last);
}  // namespace native

namespace meta {
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const WindowArguments& window, bool ceil_mode,
                                           bool for_backward);
at::Tensor backward(const at::Tensor& dz, const at::Tensor& argmax, const WindowArguments& window,
                    c10::SymInt height, c10::SymInt width, bool channels_last);
}  // namespace meta

}  // namespace palimpsest::ops::max_pool_detail
