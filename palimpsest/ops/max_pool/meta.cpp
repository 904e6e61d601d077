#include "palimpsest/kernels/max_pool.h"
#include "palimpsest/ops/max_pool/native.h"

#include <ATen/ops/empty.h>

namespace palimpsest::ops::max_pool_detail::meta {

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const WindowArguments& w, bool ceil_mode,
                                           bool for_backward) {
  const auto format = x.suggest_memory_format();
  const auto out = [&](int d) {
    return kernels::pooled_size<c10::SymInt>(x.sym_size(2 + d), w.kernel_size[d], w.stride[d], w.padding[d],
                                             w.dilation[d], ceil_mode);
  };
  const std::array<c10::SymInt, 4> sizes{x.sym_size(0), x.sym_size(1), out(0), out(1)};
  const auto bytes = x.options().dtype(at::kByte);
  return {at::empty_symint(sizes, x.options().memory_format(format)),
          for_backward ? at::empty_symint(sizes, bytes.memory_format(format)) : at::empty({0}, bytes)};
}

at::Tensor backward(const at::Tensor& dz, const at::Tensor&, const WindowArguments&, c10::SymInt height,
                    c10::SymInt width, bool channels_last) {
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  return at::empty_symint({dz.sym_size(0), dz.sym_size(1), std::move(height), std::move(width)},
                          dz.options().memory_format(format));
}

}  // namespace palimpsest::ops::max_pool_detail::meta
