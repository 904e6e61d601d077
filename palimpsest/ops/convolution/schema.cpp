#include "palimpsest/ops/convolution.h"

#include <torch/library.h>

#include <utility>
#include <vector>

/// Registers torch.ops.palimpsest.convolution: ops::convolution. It is composite, as abn is (abn/schema.cpp).
namespace palimpsest::ops::convolution_detail {
namespace {

at::Tensor convolution_of(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, std::vector<int64_t> stride,
                          std::vector<int64_t> padding, std::vector<int64_t> dilation, int64_t groups) {
  return convolution(x, weight, bias, {std::move(stride), std::move(padding), std::move(dilation), groups});
}

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  m.def(
      "convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, "
      "int groups=1) -> Tensor",
      &convolution_of);
}

}  // namespace
}  // namespace palimpsest::ops::convolution_detail
