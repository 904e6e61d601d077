#include "palimpsest/ops/common/find_operator.h"
#include "palimpsest/ops/max_pool.h"
#include "palimpsest/ops/max_pool/native.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <utility>

/// torch.ops.palimpsest.max_pool2d*. max_pool2d is composite, as abn is (abn/schema.cpp).
namespace palimpsest::ops::max_pool_detail {
namespace {

using at::IntArrayRef;

template <auto kForward>
std::tuple<at::Tensor, at::Tensor> forward_of(const at::Tensor& x, IntArrayRef kernel_size,
                                              IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation,
                                              bool ceil_mode, bool for_backward) {
  return kForward(x, {kernel_size, stride, padding, dilation}, ceil_mode, for_backward);
}

/// Int: int64_t for the native pass, SymInt for the meta one.
template <auto kBackward, class Int>
at::Tensor backward_of(const at::Tensor& dz, const at::Tensor& argmax, IntArrayRef kernel_size,
                       IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, Int height, Int width,
                       bool channels_last) {
  return kBackward(dz, argmax, {kernel_size, stride, padding, dilation}, std::move(height), std::move(width),
                   channels_last);
}

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  m.def(
      "max_pool2d(Tensor x, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, "
      "bool ceil_mode=False) -> Tensor",
      &max_pool2d);
  m.def(
      "max_pool2d_forward(Tensor x, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, "
      "bool ceil_mode, bool for_backward) -> (Tensor, Tensor)");
  m.def(
      "max_pool2d_backward(Tensor dz, Tensor argmax, int[2] kernel_size, int[2] stride, int[2] padding, "
      "int[2] dilation, SymInt height, SymInt width, bool channels_last) -> Tensor");
}

void register_native(torch::Library& m) {
  m.impl("max_pool2d_forward", &forward_of<native::forward>);
  m.impl("max_pool2d_backward", &backward_of<native::backward, int64_t>);
}
TORCH_LIBRARY_IMPL(palimpsest, CPU, m) {
  register_native(m);
}
TORCH_LIBRARY_IMPL(palimpsest, CUDA, m) {
  register_native(m);
}

TORCH_LIBRARY_IMPL(palimpsest, Meta, m) {
  m.impl("max_pool2d_forward", &forward_of<meta::forward>);
  m.impl("max_pool2d_backward", &backward_of<meta::backward, c10::SymInt>);
}

// These registrations make a gradient through a pass an error. Otherwise it would be silently wrong.
TORCH_LIBRARY_IMPL(palimpsest, Autograd, m) {
  for (const char* name : {"max_pool2d_forward", "max_pool2d_backward"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const WindowArguments& w, bool ceil_mode,
                                           bool for_backward) {
  static const auto op = find_operator("palimpsest::max_pool2d_forward", forward_of<native::forward>);
  return op.call(x, w.kernel_size, w.stride, w.padding, w.dilation, ceil_mode, for_backward);
}

at::Tensor backward(const at::Tensor& dz, const at::Tensor& argmax, const WindowArguments& w,
                    const c10::SymInt& height, const c10::SymInt& width, bool channels_last) {
  static const auto op =
      find_operator("palimpsest::max_pool2d_backward", backward_of<meta::backward, c10::SymInt>);
  return op.call(dz, argmax, w.kernel_size, w.stride, w.padding, w.dilation, height, width, channels_last);
}

}  // namespace palimpsest::ops::max_pool_detail
