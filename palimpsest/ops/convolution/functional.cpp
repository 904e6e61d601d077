#include "palimpsest/ops/convolution/functional.h"

#include "palimpsest/kernels/conv2d.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/tracing.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include <algorithm>

namespace palimpsest::ops::convolution_detail {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options(), at::MemoryFormat::ChannelsLast);
}

/// Returns the problem for our kernels; none if they do not take these tensors.
std::optional<Conv2dProblem> kernel_problem(const at::Tensor& x, const at::Tensor& w,
                                            const ConvolutionOptions& options, Reads reads = Reads::kX) {
  if (is_traced(x) || is_traced(w)) return std::nullopt;
  const auto fits = [](const at::Tensor& t) {
    return t.dim() == 4 && t.numel() > 0 && t.device().is_cpu() && t.scalar_type() == at::kFloat &&
           t.layout() == at::kStrided;
  };
  if (!fits(x) || !fits(w) || native_layout(x.sizes(), x.strides()) != Layout::kChannelsLast)
    return std::nullopt;
  const auto pair = [](const std::vector<int64_t>& values) { return Pair2{values[0], values[1]}; };
  Conv2dProblem problem{x.size(0),
                        x.size(1),
                        w.size(0),
                        options.groups,
                        {x.size(2), x.size(3)},
                        {},
                        {w.size(2), w.size(3)},
                        pair(options.stride),
                        pair(options.padding),
                        pair(options.dilation)};
  const auto out = [](int64_t in, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    return kernels::convolved_size(in, kernel, stride, padding, dilation);
  };
  problem.out = {
      out(problem.in.h, problem.kernel_size.h, problem.stride.h, problem.padding.h, problem.dilation.h),
      out(problem.in.w, problem.kernel_size.w, problem.stride.w, problem.padding.w, problem.dilation.w)};
  if (problem.out.h < 1 || problem.out.w < 1) return std::nullopt;  // libtorch raises the error
  problem.relu_x = reads == Reads::kReluOfX;
  return problem;
}

/// Returns whether our kernel takes less time than libtorch's (bench_convolution_time).
bool is_faster(const Conv2dProblem& problem, Conv2dPass pass) {
  constexpr int64_t kFewPixels = 64, kFewChannels = 64;
  if (!kernels::cpu::has_conv2d(problem, pass)) return false;
  if (kernels::cpu::has_winograd(problem)) return true;
  const bool strided = problem.stride.h * problem.stride.w > 1;
  const bool is_1x1 = problem.kernel_size.h * problem.kernel_size.w == 1;
  if (is_1x1 && !(strided && pass == Conv2dPass::kBackwardWeight)) return problem.group_in() >= kFewChannels;
  // All passes over narrow groups are faster but one, which takes 1.1 of libtorch's time.
  if (problem.group_in() <= 16)
    return !(pass == Conv2dPass::kBackwardWeight && strided && problem.group_in() == 16);
  return is_1x1 || strided || problem.out.h * problem.out.w <= kFewPixels;
}

/// Returns whether our kernel runs the forward pass. A bias is added afterwards, which costs what only some
/// kernels gain. A bias that does not fit is libtorch's to refuse.
bool runs_forward(const Conv2dProblem& problem, const std::optional<at::Tensor>& bias) {
  if (!is_faster(problem, Conv2dPass::kForward)) return false;
  return !bias || (kernels::cpu::has_winograd(problem) && bias->scalar_type() == at::kFloat &&
                   bias->device().is_cpu() && bias->dim() == 1 && bias->size(0) == problem.c_out);
}

/// Runs the forward pass in the dtype of the weight.
at::Tensor forward_of_type(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const ConvolutionOptions& options,
                           Reads reads) {
  const auto problem = kernel_problem(x, weight, options, reads);
  if (problem && runs_forward(*problem, bias)) {
    const at::Tensor w = contiguous_in(Layout::kChannelsLast, weight);
    at::Tensor y = empty_channels_last({problem->n, problem->c_out, problem->out.h, problem->out.w}, x);
    kernels::cpu::conv2d_forward(*problem, x.const_data_ptr<float>(), w.const_data_ptr<float>(),
                                 y.mutable_data_ptr<float>());
    if (bias) y.add_(bias->view({-1, 1, 1}));
    return y;
  }
  TORCH_INTERNAL_ASSERT(reads == Reads::kX);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::vector<int64_t> output_padding(options.stride.size(), 0);
  return at::convolution(x, weight, bias, options.stride, options.padding, options.dilation,
                         /*transposed=*/false, output_padding, options.groups);
}

Gradients backward_of_type(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                           const ConvolutionOptions& options, std::array<bool, 3> needed, Reads reads) {
  Gradients result;
  auto& [need_input, need_weight, need_bias] = needed;
  if (const auto problem = kernel_problem(x, weight, options, reads);
      problem && dout.scalar_type() == at::kFloat) {
    const bool own_input = need_input && is_faster(*problem, Conv2dPass::kBackwardInput);
    const bool own_weight = need_weight && is_faster(*problem, Conv2dPass::kBackwardWeight);
    at::Tensor dy;
    if (own_input || own_weight) dy = contiguous_in(Layout::kChannelsLast, dout);
    if (own_input) {
      const at::Tensor w = contiguous_in(Layout::kChannelsLast, weight);
      result.input = empty_channels_last(x.sizes(), x);
      kernels::cpu::conv2d_backward_input(*problem, dy.const_data_ptr<float>(), w.const_data_ptr<float>(),
                                          problem->relu_x ? x.const_data_ptr<float>() : nullptr,
                                          result.input.mutable_data_ptr<float>());
      need_input = false;
    }
    if (own_weight) {
      result.weight = empty_channels_last(weight.sizes(), weight);
      kernels::cpu::conv2d_backward_weight(*problem, x.const_data_ptr<float>(), dy.const_data_ptr<float>(),
                                           result.weight.mutable_data_ptr<float>());
      need_weight = false;
    }
  }
  if (!need_input && !need_weight && !need_bias) return result;
  TORCH_INTERNAL_ASSERT(reads == Reads::kX || !(need_input || need_weight));
  const std::vector<int64_t> output_padding(options.stride.size(), 0);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  auto [dx, dweight, dbias] =
      at::convolution_backward(dout, x, weight, at::OptionalIntArrayRef(weight.sizes().slice(0, 1)),
                               options.stride, options.padding, options.dilation,
                               /*transposed=*/false, output_padding, options.groups, needed);
  if (need_input) result.input = std::move(dx);
  if (need_weight) result.weight = std::move(dweight);
  if (need_bias) result.bias = std::move(dbias);
  return result;
}

/// Returns the precision of a pass; without autocast its storage type is the dtype of the weight.
ProductPrecision precision_of(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<ProductPrecision>& autocast) {
  return convolution_precision(autocast.value_or(ProductPrecision{weight.scalar_type()}), x);
}

/// Returns how many images of x one part of a pass in f32 takes: as many as keep the f32 copies of x and the
/// output, `out_numel` elements per image, to 16 MiB, and at least one.
int64_t images_per_part(const at::Tensor& x, int64_t out_numel) {
  constexpr int64_t kPartElements = (int64_t{16} << 20) / sizeof(float);
  const int64_t image = x.numel() / x.size(0) + out_numel;
  return std::clamp<int64_t>(kPartElements / std::max<int64_t>(1, image), 1, x.size(0));
}

/// Returns whether a pass in f32 may run in parts of the batch. A GPU and a traced graph take it whole.
bool runs_in_parts(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && !is_traced(x) && !is_traced(weight) && x.numel() > 0 && x.size(0) > 1;
}

/// Runs the forward pass in f32, in parts of the batch. The result has the storage type.
at::Tensor forward_in_f32(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, const ConvolutionOptions& options,
                          const ProductPrecision& p) {
  // One operator for a profiler, whatever the number of parts. Backward is one in any case.
  RECORD_FUNCTION("palimpsest::convolution_in_f32", std::vector<c10::IValue>());
  const at::Tensor w = operand(weight, p);
  const auto b = bias ? std::optional(operand(*bias, p)) : std::nullopt;
  const auto run = [&](const at::Tensor& part) {
    return forward_of_type(operand(part, p), w, b, options, Reads::kX);
  };
  if (!runs_in_parts(x, weight)) return run(x).to(p.storage);
  int64_t out_numel = x.numel() / (x.size(0) * x.size(1)) * weight.size(0);
  for (const int64_t stride : options.stride) out_numel /= stride;
  const int64_t n = x.size(0), images = images_per_part(x, out_numel);
  if (images == n) return run(x).to(p.storage);
  at::Tensor y;
  for (int64_t first = 0; first < n; first += images) {
    const int64_t count = std::min(images, n - first);
    const at::Tensor part = run(x.narrow(0, first, count));
    if (!y.defined()) {
      auto sizes = part.sizes().vec();
      sizes[0] = n;
      y = at::empty(sizes, part.options().dtype(p.storage), part.suggest_memory_format());
    }
    y.narrow(0, first, count).copy_(part);
  }
  return y;
}

/// Runs the backward passes in f32, in parts of the batch: the gradients of weight and bias are summed in f32
/// over the parts, in their order. The results have the storage type.
Gradients backward_in_f32(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                          const ConvolutionOptions& options, std::array<bool, 3> needed,
                          const ProductPrecision& p) {
  const at::Tensor w = operand(weight, p);
  const auto run = [&](const at::Tensor& dout_part, const at::Tensor& x_part) {
    const bool need_weight = needed[1];
    return backward_of_type(operand(dout_part, p),
                            need_weight ? operand(x_part, p) : shape_of(x_part, p.compute_type()), w, options,
                            needed, Reads::kX);
  };
  const auto stored = [&](const at::Tensor& t) { return t.defined() ? t.to(p.storage) : t; };
  const auto whole = [&] {
    const Gradients g = run(dout, x);
    return Gradients{stored(g.input), stored(g.weight), stored(g.bias)};
  };
  if (!runs_in_parts(x, weight)) return whole();
  const int64_t n = x.size(0), images = images_per_part(x, dout.numel() / x.size(0));
  if (images == n) return whole();
  Gradients sum;
  const auto add = [](at::Tensor& to, const at::Tensor& part) {
    if (to.defined())
      to.add_(part);
    else
      to = part;
  };
  for (int64_t first = 0; first < n; first += images) {
    const int64_t count = std::min(images, n - first);
    const Gradients part = run(dout.narrow(0, first, count), x.narrow(0, first, count));
    if (part.input.defined()) {
      if (!sum.input.defined())
        sum.input = at::empty(x.sizes(), x.options().dtype(p.storage), part.input.suggest_memory_format());
      sum.input.narrow(0, first, count).copy_(part.input);
    }
    if (part.weight.defined()) add(sum.weight, part.weight);
    if (part.bias.defined()) add(sum.bias, part.bias);
  }
  return {sum.input, stored(sum.weight), stored(sum.bias)};
}

}  // namespace

at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   const ConvolutionOptions& options, const std::optional<ProductPrecision>& precision,
                   Reads reads) {
  const ProductPrecision p = precision_of(x, weight, precision);
  if (p.compute_in_f32) {
    TORCH_INTERNAL_ASSERT(reads == Reads::kX);
    return forward_in_f32(x, weight, bias, options, p);
  }
  if (!precision) return forward_of_type(x.to(p.storage), weight, bias, options, reads);
  const auto b = bias ? std::optional(operand(*bias, p)) : std::nullopt;
  return forward_of_type(operand(x, p), operand(weight, p), b, options, reads);
}

Gradients backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                   const ConvolutionOptions& options, std::array<bool, 3> needed,
                   const std::optional<ProductPrecision>& precision, Reads reads) {
  const auto [need_input, need_weight, need_bias] = needed;
  const ProductPrecision p = precision_of(x, weight, precision), q = weight_gradient_precision(p, x);
  const auto run = [&](std::array<bool, 3> gradients, const ProductPrecision& with) {
    if (with.compute_in_f32) {
      TORCH_INTERNAL_ASSERT(reads == Reads::kX);
      return backward_in_f32(dout, x, weight, options, gradients, with);
    }
    return backward_of_type(operand(dout, with), gradients[1] ? operand(x, with) : shape_of(x, with.storage),
                            operand(weight, with), options, gradients, reads);
  };
  if (p.compute_in_f32 == q.compute_in_f32) return run(needed, p);
  Gradients result;
  if (need_weight || need_bias) result = run({false, need_weight, need_bias}, q);
  if (need_input) result.input = run({true, false, false}, p).input;
  return result;
}

namespace {

/// Returns the problem of a convolution of relu(x) for our kernels; none if they do not take these tensors.
std::optional<Conv2dProblem> relu_problem(const at::Tensor& x, const at::Tensor& weight,
                                          const ConvolutionOptions& options,
                                          const std::optional<ProductPrecision>& precision) {
  return precision ? std::nullopt : kernel_problem(x, weight, options, Reads::kReluOfX);
}

}  // namespace

bool forward_reads_relu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        const ConvolutionOptions& options, const std::optional<ProductPrecision>& precision) {
  const auto problem = relu_problem(x, weight, options, precision);
  return problem && runs_forward(*problem, bias);
}

bool weight_gradient_reads_relu(const at::Tensor& x, const at::Tensor& weight,
                                const ConvolutionOptions& options,
                                const std::optional<ProductPrecision>& precision) {
  const auto problem = relu_problem(x, weight, options, precision);
  return problem && is_faster(*problem, Conv2dPass::kBackwardWeight);
}

bool backward_reads_relu(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options,
                         const std::optional<ProductPrecision>& precision) {
  const auto problem = relu_problem(x, weight, options, precision);
  return problem && is_faster(*problem, Conv2dPass::kBackwardInput) &&
         is_faster(*problem, Conv2dPass::kBackwardWeight);
}

bool has_own_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options) {
  if (x.scalar_type() == weight.scalar_type() &&
      weight_gradient_precision(precision_of(x, weight, std::nullopt), x).compute_in_f32)
    return true;
  const auto problem = kernel_problem(x, weight, options);
  return problem &&
         (is_faster(*problem, Conv2dPass::kForward) || is_faster(*problem, Conv2dPass::kBackwardInput) ||
          is_faster(*problem, Conv2dPass::kBackwardWeight));
}

void save_options(torch::autograd::AutogradContext* ctx, const ConvolutionOptions& options) {
  ctx->saved_data["stride"] = options.stride;
  ctx->saved_data["padding"] = options.padding;
  ctx->saved_data["dilation"] = options.dilation;
  ctx->saved_data["groups"] = options.groups;
}

ConvolutionOptions saved_options(torch::autograd::AutogradContext* ctx) {
  const auto list = [&](const char* key) { return ctx->saved_data[key].toIntVector(); };
  return {list("stride"), list("padding"), list("dilation"), ctx->saved_data["groups"].toInt()};
}

}  // namespace palimpsest::ops::convolution_detail
