#include "palimpsest/ops/convolution/functional.h"

#include "palimpsest/kernels/conv2d.h"
#include "palimpsest/ops/common/layout.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>

namespace palimpsest::ops {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options(), at::MemoryFormat::ChannelsLast);
}

/// The layer as kernels see it, if these tensors are such that kernels could run.
std::optional<Conv2dProblem> kernel_layer(const at::Tensor& x, const at::Tensor& w,
                                          const ConvolutionOptions& o) {
  const auto fits = [](const at::Tensor& t) {
    return t.dim() == 4 && t.numel() > 0 && t.device().is_cpu() && t.scalar_type() == at::kFloat &&
           t.layout() == at::kStrided;
  };
  if (!fits(x) || !fits(w) || dense_layout(x.sizes(), x.strides()) != Layout::kChannelsLast)
    return std::nullopt;
  const auto pair = [](const std::vector<int64_t>& values) { return Pair2{values[0], values[1]}; };
  Conv2dProblem l{x.size(0),
                  x.size(1),
                  w.size(0),
                  o.groups,
                  {x.size(2), x.size(3)},
                  {},
                  {w.size(2), w.size(3)},
                  pair(o.stride),
                  pair(o.padding),
                  pair(o.dilation)};
  l.out = {kernels::convolved_size(l.in.h, l.kernel_size.h, l.stride.h, l.padding.h, l.dilation.h),
           kernels::convolved_size(l.in.w, l.kernel_size.w, l.stride.w, l.padding.w, l.dilation.w)};
  if (l.out.h < 1 || l.out.w < 1) return std::nullopt;  // libtorch says why
  return l;
}

/// Whether our kernel takes less time than libtorch's: bench_convolution_time has the figures.
bool is_faster(const Conv2dProblem& l, Conv2dPass pass) {
  constexpr int64_t kFewPixels = 64;
  if (!kernels::cpu::has_conv2d(l, pass)) return false;
  const bool strided = l.stride.h * l.stride.w > 1;
  // All passes of narrow groups but one, which takes 1.1 of libtorch's time.
  if (l.group_in() <= 16) return !(pass == Conv2dPass::kBackwardWeight && strided && l.group_in() == 16);
  return l.kernel_size.h * l.kernel_size.w == 1 || strided || l.out.h * l.out.w <= kFewPixels;
}

/// In the type of the weight.
at::Tensor forward_of_type(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const ConvolutionOptions& o) {
  const auto layer = kernel_layer(x, weight, o);
  if (!bias && layer && is_faster(*layer, Conv2dPass::kForward)) {
    const at::Tensor w = dense_in(Layout::kChannelsLast, weight);
    at::Tensor y = empty_channels_last({layer->n, layer->c_out, layer->out.h, layer->out.w}, x);
    kernels::cpu::conv2d_forward(*layer, x.const_data_ptr<float>(), w.const_data_ptr<float>(),
                                 y.mutable_data_ptr<float>());
    return y;
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::vector<int64_t> output_padding(o.stride.size(), 0);
  return at::convolution(x, weight, bias, o.stride, o.padding, o.dilation,
                         /*transposed=*/false, output_padding, o.groups);
}

ConvolutionGradients backward_of_type(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                                      const ConvolutionOptions& o, std::array<bool, 3> needed) {
  ConvolutionGradients result;
  auto& [need_input, need_weight, need_bias] = needed;
  if (const auto layer = kernel_layer(x, weight, o); layer && dout.scalar_type() == at::kFloat) {
    const bool own_input = need_input && is_faster(*layer, Conv2dPass::kBackwardInput);
    const bool own_weight = need_weight && is_faster(*layer, Conv2dPass::kBackwardWeight);
    at::Tensor dy;
    if (own_input || own_weight) dy = dense_in(Layout::kChannelsLast, dout);
    if (own_input) {
      const at::Tensor w = dense_in(Layout::kChannelsLast, weight);
      result.input = empty_channels_last(x.sizes(), x);
      kernels::cpu::conv2d_backward_input(*layer, dy.const_data_ptr<float>(), w.const_data_ptr<float>(),
                                          result.input.mutable_data_ptr<float>());
      need_input = false;
    }
    if (own_weight) {
      result.weight = empty_channels_last(weight.sizes(), weight);
      kernels::cpu::conv2d_backward_weight(*layer, x.const_data_ptr<float>(), dy.const_data_ptr<float>(),
                                           result.weight.mutable_data_ptr<float>());
      need_weight = false;
    }
  }
  if (!need_input && !need_weight && !need_bias) return result;
  const std::vector<int64_t> output_padding(o.stride.size(), 0);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto [dx, dweight, dbias] = at::convolution_backward(
      dout, x, weight, at::OptionalIntArrayRef(weight.sizes().slice(0, 1)), o.stride, o.padding, o.dilation,
      /*transposed=*/false, output_padding, o.groups, needed);
  if (need_input) result.input = std::move(dx);
  if (need_weight) result.weight = std::move(dweight);
  if (need_bias) result.bias = std::move(dbias);
  return result;
}

}  // namespace

at::Tensor convolution_forward(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const ConvolutionOptions& o,
                               const std::optional<ProductPrecision>& p) {
  if (!p) return forward_of_type(x.to(weight.scalar_type()), weight, bias, o);
  const auto b = bias ? std::optional(operand(*bias, *p)) : std::nullopt;
  return forward_of_type(operand(x, *p), operand(weight, *p), b, o).to(p->storage);
}

ConvolutionGradients convolution_backward(const at::Tensor& dout, const at::Tensor& x,
                                          const at::Tensor& weight, const ConvolutionOptions& o,
                                          std::array<bool, 3> needed,
                                          const std::optional<ProductPrecision>& p) {
  const auto [need_input, need_weight, need_bias] = needed;
  if (!p) {
    const auto type = weight.scalar_type();
    return backward_of_type(dout, need_weight ? x.to(type) : shape_of(x, type), weight, o, needed);
  }
  ConvolutionGradients result;
  if (need_input)
    result.input = backward_of_type(operand(dout, *p), shape_of(x, p->maths()), operand(weight, *p), o,
                                    {true, false, false})
                       .input.to(p->storage);
  if (need_weight || need_bias) {
    const ProductPrecision q = weight_gradient_precision(*p, x);
    auto g = backward_of_type(operand(dout, q), need_weight ? operand(x, q) : shape_of(x, q.maths()),
                              shape_of(weight, q.maths()), o, {false, need_weight, need_bias});
    if (need_weight) result.weight = g.weight.to(p->storage);
    if (need_bias) result.bias = g.bias.to(p->storage);
  }
  return result;
}

bool has_own_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& o) {
  const auto layer = kernel_layer(x, weight, o);
  return layer && (is_faster(*layer, Conv2dPass::kForward) || is_faster(*layer, Conv2dPass::kBackwardInput) ||
                   is_faster(*layer, Conv2dPass::kBackwardWeight));
}

void save_options(torch::autograd::AutogradContext* ctx, const ConvolutionOptions& o) {
  ctx->saved_data["stride"] = o.stride;
  ctx->saved_data["padding"] = o.padding;
  ctx->saved_data["dilation"] = o.dilation;
  ctx->saved_data["groups"] = o.groups;
}

ConvolutionOptions saved_options(torch::autograd::AutogradContext* ctx) {
  const auto list = [&](const char* key) { return ctx->saved_data[key].toIntVector(); };
  return {list("stride"), list("padding"), list("dilation"), ctx->saved_data["groups"].toInt()};
}

}  // namespace palimpsest::ops
