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
  const Pair2 &k = window.kernel_size, &s = window.stride, &p = window.padding, &d = window.dilation;
  TORCH_CHECK(std::min({k.h, k.w, s.h, s.w, d.h, d.w}) >= 1 &&
                  std::max({k.h, k.w, window.positions()}) <= kernels::kMaxPoolPositions &&
                  std::max({s.h, s.w, d.h, d.w}) <= kernels::kMaxPoolStep && std::min(p.h, p.w) >= 0 &&
                  p.h <= k.h / 2 && p.w <= k.w / 2,
              "[max_pool2d] not a window that max_pool2d accepts: kernel_size ", w.kernel_size, ", stride ",
              w.stride, ", padding ", w.padding, ", dilation ", w.dilation);
  return window;
}

/// Makes large steps small that lead out of the image in any case: the kernels' memory depends on them. A
/// single window takes no stride, and a dilated position that lies behind the image stays there.
void shorten_steps(MaxPoolProblem& problem) {
  kernels::PoolWindow& w = problem.window;
  if (problem.out.h == 1) w.stride.h = 1;
  if (problem.out.w == 1) w.stride.w = 1;
  w.dilation.h = std::min(w.dilation.h, problem.in.h + w.padding.h);
  w.dilation.w = std::min(w.dilation.w, problem.in.w + w.padding.w);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& x, const WindowArguments& w, bool ceil_mode,
                                           bool for_backward) {
  TORCH_CHECK(x.layout() == at::kStrided && x.dim() == 4 && std::min({x.size(1), x.size(2), x.size(3)}) > 0,
              "[max_pool2d] the inner operators need x of (N, C, H, W) with at least one pixel, got shape ",
              x.sizes());
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
  TORCH_CHECK(std::min(problem.out.h, problem.out.w) > 0,
              "[max_pool2d] the window must fit into the padded image, got x of shape ", x.sizes());
  shorten_steps(problem);
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
  TORCH_CHECK(dz.dim() == 4 && argmax.sizes() == dz.sizes() && argmax.scalar_type() == at::kByte &&
                  argmax.device() == dz.device() && dz.layout() == at::kStrided,
              "[max_pool2d] backward needs dz of (N, C, H, W) and as many bytes of argmax on its device, got "
              "shapes ",
              dz.sizes(), " and ", argmax.sizes(), " of ", argmax.scalar_type());
  const kernels::PoolWindow window = window_of(w);
  const auto pooled = [&](int d, int64_t size, bool ceil_mode) {
    return size > 0 ? kernels::pooled_size<int64_t>(size, w.kernel_size[d], w.stride[d], w.padding[d],
                                                    w.dilation[d], ceil_mode)
                    : 0;
  };
  TORCH_CHECK(dz.size(1) > 0 && dz.size(2) > 0 && dz.size(3) > 0 &&
                  ((dz.size(2) == pooled(0, height, false) && dz.size(3) == pooled(1, width, false)) ||
                   (dz.size(2) == pooled(0, height, true) && dz.size(3) == pooled(1, width, true))),
              "[max_pool2d] these windows do not make dz of shape ", dz.sizes(), " from images of ", height,
              " x ", width, " pixels");
  const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  const at::Tensor contiguous = dz.contiguous(format), positions = argmax.contiguous(format);
  at::Tensor dx = at::empty({dz.size(0), dz.size(1), height, width}, dz.options().memory_format(format));
  MaxPoolProblem problem{dz.size(0),
                         dz.size(1),
                         {height, width},
                         {dz.size(2), dz.size(3)},
                         window,
                         channels_last ? Layout::kChannelsLast : Layout::kNCHW,
                         dtype_of("max_pool2d", dz)};
  shorten_steps(problem);
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
