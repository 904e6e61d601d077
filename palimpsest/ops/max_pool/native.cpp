#include "palimpsest/kernels/max_pool.h"

#include "palimpsest/kernels/cuda/max_pool.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/max_pool/functional.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace palimpsest::ops::dense {
namespace {

using kernels::MaxPoolProblem;

Pair2 pair(at::IntArrayRef numbers) {
  TORCH_CHECK(numbers.size() == 2, "[max_pool2d] the inner operators need two numbers each, got ", numbers);
  return {numbers[0], numbers[1]};
}

// max_pool2d has checked all of it; again here only what the kernels' memory depends on.
kernels::PoolWindow window_of(PALIMPSEST_POOL_WINDOW) {
  const kernels::PoolWindow window{pair(kernel_size), pair(stride), pair(padding), pair(dilation)};
  const Pair2 &k = window.kernel_size, &s = window.stride, &d = window.dilation;
  TORCH_CHECK(std::min({k.h, k.w, s.h, s.w, d.h, d.w}) >= 1 &&
                  std::max({k.h, k.w, window.positions()}) <= kernels::kMaxPoolPositions &&
                  std::min(window.padding.h, window.padding.w) >= 0,
              "[max_pool2d] not a window that max_pool2d lets through: kernel_size ", kernel_size,
              ", stride ", stride, ", padding ", padding, ", dilation ", dilation);
  return window;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> max_pool2d_forward(const at::Tensor& x, PALIMPSEST_POOL_WINDOW,
                                                      bool ceil_mode, bool for_backward) {
  const auto format = x.suggest_memory_format();
  const at::Tensor dense = x.contiguous(format);
  MaxPoolProblem layer;
  layer.window = window_of(kernel_size, stride, padding, dilation);
  layer.n = x.size(0);
  layer.c = x.size(1);
  layer.in = {x.size(2), x.size(3)};
  const auto out = [&](int d) {
    return kernels::pooled_size<int64_t>(x.size(2 + d), kernel_size[d], stride[d], padding[d], dilation[d],
                                         ceil_mode);
  };
  layer.out = {out(0), out(1)};
  layer.layout = format == at::MemoryFormat::ChannelsLast ? Layout::kChannelsLast : Layout::kNCHW;
  layer.dtype = dtype_of("max_pool2d", x);
  const auto sizes = {layer.n, layer.c, layer.out.h, layer.out.w};
  at::Tensor z = at::empty(sizes, x.options().memory_format(format));
  at::Tensor argmax = for_backward ? at::empty(sizes, x.options().dtype(at::kByte).memory_format(format))
                                   : at::empty({0}, x.options().dtype(at::kByte));
  if (z.numel() > 0) {
    uint8_t* const places = for_backward ? argmax.mutable_data_ptr<uint8_t>() : nullptr;
    if (x.is_cuda())
      kernels::cuda::max_pool_forward(layer, dense.const_data_ptr(), z.mutable_data_ptr(), places,
                                      CudaCall(x).stream());
    else
      kernels::cpu::max_pool_forward(layer, dense.const_data_ptr(), z.mutable_data_ptr(), places);
  }
  return {std::move(z), std::move(argmax)};
}

at::Tensor max_pool2d_backward(const at::Tensor& dz, const at::Tensor& argmax, PALIMPSEST_POOL_WINDOW,
                               int64_t height, int64_t width, bool channels_last) {
  TORCH_CHECK(dz.dim() == 4 && argmax.sizes() == dz.sizes() && argmax.scalar_type() == at::kByte,
              "[max_pool2d] backward needs dz of (N, C, H, W) and as many bytes of argmax, got shapes ",
              dz.sizes(), " and ", argmax.sizes(), " of ", argmax.scalar_type());
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const at::Tensor dense = dz.contiguous(format), places = argmax.contiguous(format);
  at::Tensor dx = at::empty({dz.size(0), dz.size(1), height, width}, dz.options().memory_format(format));
  const MaxPoolProblem layer{dz.size(0),
                             dz.size(1),
                             {height, width},
                             {dz.size(2), dz.size(3)},
                             window_of(kernel_size, stride, padding, dilation),
                             channels_last ? Layout::kChannelsLast : Layout::kNCHW,
                             dtype_of("max_pool2d", dz)};
  if (dx.numel() > 0) {
    const auto* const bytes = places.const_data_ptr<uint8_t>();
    if (dz.is_cuda())
      kernels::cuda::max_pool_backward(layer, dense.const_data_ptr(), bytes, dx.mutable_data_ptr(),
                                       CudaCall(dz).stream());
    else
      kernels::cpu::max_pool_backward(layer, dense.const_data_ptr(), bytes, dx.mutable_data_ptr());
  }
  return dx;
}

}  // namespace palimpsest::ops::dense
