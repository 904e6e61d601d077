#include "palimpsest/ops/max_pool.h"
#include "palimpsest/ops/max_pool/functional.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

/// What max pooling adds to torch.ops.palimpsest. max_pool2d is composite, as abn is (register.cpp).
namespace palimpsest::ops {
namespace {

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

void register_dense_pool(torch::Library& m) {
  m.impl("max_pool2d_forward", &dense::max_pool2d_forward);
  m.impl("max_pool2d_backward", &dense::max_pool2d_backward);
}
TORCH_LIBRARY_IMPL(palimpsest, CPU, m) {
  register_dense_pool(m);
}
TORCH_LIBRARY_IMPL(palimpsest, CUDA, m) {
  register_dense_pool(m);
}

TORCH_LIBRARY_IMPL(palimpsest, Meta, m) {
  m.impl("max_pool2d_forward", &meta::max_pool2d_forward);
  m.impl("max_pool2d_backward", &meta::max_pool2d_backward);
}

// Without these a gradient through an inner operator would be silently wrong; with them it is an error.
TORCH_LIBRARY_IMPL(palimpsest, Autograd, m) {
  for (const char* name : {"max_pool2d_forward", "max_pool2d_backward"})
    m.impl(name, torch::autograd::autogradNotImplementedFallback());
}

}  // namespace
}  // namespace palimpsest::ops
