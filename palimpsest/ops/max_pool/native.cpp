#include "palimpsest/ops/max_pool/native.h"
#include "palimpsest/kernels/cuda/max_pool.h"
#include "palimpsest/kernels/max_pool.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/common/dtype.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace palimpsest::ops::max_pool_detail::native {
namespace {

using kernels::MaxPoolProblem;

Pair2 pair(at::IntArrayRef numbers) {
  TORCH_CHECK(numbers.size() == 2, "[max_pool2d] the inner operators need two numbers each, got ", numbers);
  return {numbers[0], numbers[1]};
}

// max_pool2d has checked the window. The checks are repeated here because anybody can call this operator, and
// memory accesses depend on them.
kernels::PoolWindow window_of(const WindowArguments& w) {
  const kernels::PoolWindow window{pair(w.kernel_size), pair(w.stride), pair(w.padding), pair(w.dilation)};
  const Pair2 &k = window.kernel_size, &s = window.stride, &d = window.dilation;
  TORCH_CHECK(std::min({k.h, k.w, s.h, s.w, d.h, d.w}) >= 1 &&
                  std::max({k.h, k.w, window.positions()}) <= kernels::kMaxPoolPositions &&
                  std::min(window.padding.h, window.padding.w) >= 0,
              "[max_pool2d] not a window that max_pool2d accepts: kernel_size ", w.kernel_size, ", stride ",
              w.stride, ", padding ", w.padding, ", dilation ", w.dilation);
  return window;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const WindowArguments& w, bool ceil_mode,
                                           bool for_backward) {
  const auto format = x.suggest_memory_format();
  const at::Tensor contiguous = x.contiguous(format);
  MaxPoolProblem problem;
  problem.window = window_of(w);
  problem.n = x.size(0);
  problem.c = x.size(1);
  problem.in = {x.size(2), x.size(3)};
  const auto out = [&](int d) {
    return kernels::pooled_size<int64_t>(x.size(2 + d), w.kernel_size[d], w.stride[d], w.padding[d],
                                         w.dilation[d], ceil_mode);
  };
  problem.out = {out(0), out(1)};
  problem.layout = format == at::MemoryFormat::ChannelsLast ? Layout::kChannelsLast : Layout::kNCHW;
  problem.dtype = dtype_of("max_pool2d", x);
  const auto sizes = {problem.n, problem.c, problem.out.h, problem.out.w};
  at::Tensor z = at::empty(sizes, x.options().memory_format(format));
  at::Tensor argmax = for_backward ? at::empty(sizes, x.options().dtype(at::kByte).memory_format(format))
                                   : at::empty({0}, x.options().dtype(at::kByte));
  if (z.numel() > 0) {
    uint8_t* const positions = for_backward ? argmax.mutable_data_ptr<uint8_t>() : nullptr;
    if (x.is_cuda())
      kernels::cuda::max_pool_forward(problem, contiguous.const_data_ptr(), z.mutable_data_ptr(), positions,
                                      CudaCall(x).stream());
    else
      kernels::cpu::max_pool_forward(problem, contiguous.const_data_ptr(), z.mutable_data_ptr(), positions);
  }
  return {std::move(z), std::move(argmax)};
}

at::Tensor backward(const at::Tensor& dz, const at::Tensor& argmax, const WindowArguments& w, int64_t height,
                    int64_t width, bool channels_last) {
  TORCH_CHECK(dz.dim() == 4 && argmax.sizes() == dz.sizes() && argmax.scalar_type() == at::kByte,
              "[max_pool2d] backward needs dz of (N, C, H, W) and as many bytes of argmax, got shapes ",
              dz.sizes(), " and ", argmax.sizes(), " of ", argmax.scalar_type());
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const at::Tensor contiguous = dz.contiguous(format), positions = argmax.contiguous(format);
  at::Tensor dx = at::empty({dz.size(0), dz.size(1), height, width}, dz.options().memory_format(format));
  const MaxPoolProblem problem{dz.size(0),
                               dz.size(1),
                               {height, width},
                               {dz.size(2), dz.size(3)},
                               window_of(w),
                               channels_last ? Layout::kChannelsLast : Layout::kNCHW,
                               dtype_of("max_pool2d", dz)};
  if (dx.numel() > 0) {
    const auto* const bytes = positions.const_data_ptr<uint8_t>();
    if (dz.is_cuda())
      kernels::cuda::max_pool_backward(problem, contiguous.const_data_ptr(), bytes, dx.mutable_data_ptr(),
                                       CudaCall(dz).stream());
    else
      kernels::cpu::max_pool_backward(problem, contiguous.const_data_ptr(), bytes, dx.mutable_data_ptr());
  }
  return dx;
}

}  // namespace palimpsest::ops::max_pool_detail::native
