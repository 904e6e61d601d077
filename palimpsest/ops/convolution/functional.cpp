#include "palimpsest/ops/convolution/functional.h"

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/conv2d.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/tracing.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace palimpsest::ops::convolution_detail {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

at::Tensor empty_channels_last(at::IntArrayRef sizes, const at::Tensor& like) {
  return at::empty(sizes, like.options(), at::MemoryFormat::ChannelsLast);
}

/// Returns whether our kernels read and write images of this type. They take weights in f32.
bool is_image_type(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

/// Returns the problem for our kernels; none if they do not take x, with a weight of the shape of w in f32.
std::optional<Conv2dProblem> kernel_problem(const at::Tensor& x, const at::Tensor& w,
                                            const ConvolutionOptions& options, Reads reads = Reads::kX) {
  if (is_traced(x) || is_traced(w) || !is_image_type(x.scalar_type())) return std::nullopt;
  const auto fits = [](const at::Tensor& t) {
    return t.dim() == 4 && t.numel() > 0 && t.device().is_cpu() && t.layout() == at::kStrided && !t.is_neg();
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
  problem.dtype = dtype_of(x.scalar_type());
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
/// kernels gain, and would round 16 bits twice. A bias that does not fit is libtorch's to refuse.
bool runs_forward(const Conv2dProblem& problem, const std::optional<at::Tensor>& bias) {
  if (!is_faster(problem, Conv2dPass::kForward)) return false;
  return !bias || (kernels::cpu::has_winograd(problem) && problem.dtype == DType::f32 &&
                   bias->scalar_type() == at::kFloat && bias->device().is_cpu() && bias->dim() == 1 &&
                   bias->size(0) == problem.c_out);
}

/// Runs the forward pass if our kernel takes less time; else the result is undefined. The weight is in f32; the
/// result has the type of x.
at::Tensor forward_by_kernel(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& bias, const ConvolutionOptions& options,
                             Reads reads) {
  const auto problem = kernel_problem(x, weight, options, reads);
  if (!problem || weight.scalar_type() != at::kFloat || !runs_forward(*problem, bias)) return {};
  const at::Tensor w = contiguous_in(Layout::kChannelsLast, weight);
  at::Tensor y = empty_channels_last({problem->n, problem->c_out, problem->out.h, problem->out.w}, x);
  kernels::cpu::conv2d_forward(*problem, x.const_data_ptr(), w.const_data_ptr<float>(), y.mutable_data_ptr());
  if (bias) y.add_(bias->view({-1, 1, 1}));
  return y;
}

/// Runs the forward pass in the dtype of the weight.
at::Tensor forward_of_type(const at::Tensor& x, const at::Tensor& weight,
                           const std::optional<at::Tensor>& bias, const ConvolutionOptions& options,
                           Reads reads) {
  if (at::Tensor y = forward_by_kernel(x, weight, bias, options, reads); y.defined()) return y;
  TORCH_INTERNAL_ASSERT(reads == Reads::kX);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const std::vector<int64_t> output_padding(options.stride.size(), 0);
  return at::convolution(x, weight, bias, options.stride, options.padding, options.dilation,
                         /*transposed=*/false, output_padding, options.groups);
}

/// Runs the passes for which our kernels take less time, and clears them in `needed`. The weight is in f32; the
/// gradient of x has the type of x and of dout.
Gradients backward_by_kernels(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                              const ConvolutionOptions& options, std::array<bool, 3>& needed, Reads reads) {
  Gradients result;
  auto& [need_input, need_weight, need_bias] = needed;
  const auto problem = kernel_problem(x, weight, options, reads);
  if (!problem || weight.scalar_type() != at::kFloat || dout.scalar_type() != x.scalar_type() ||
      is_traced(dout))
    return result;
  const bool own_input = need_input && is_faster(*problem, Conv2dPass::kBackwardInput);
  const bool own_weight = need_weight && is_faster(*problem, Conv2dPass::kBackwardWeight);
  at::Tensor dy;
  if (own_input || own_weight) dy = contiguous_in(Layout::kChannelsLast, dout);
  if (own_input) {
    const at::Tensor w = contiguous_in(Layout::kChannelsLast, weight);
    result.input = empty_channels_last(x.sizes(), x);
    kernels::cpu::conv2d_backward_input(*problem, dy.const_data_ptr(), w.const_data_ptr<float>(),
                                        problem->relu_x ? x.const_data_ptr() : nullptr,
                                        result.input.mutable_data_ptr());
    need_input = false;
  }
  if (own_weight) {
    result.weight = empty_channels_last(weight.sizes(), weight);
    kernels::cpu::conv2d_backward_weight(*problem, x.const_data_ptr(), dy.const_data_ptr(),
                                         result.weight.mutable_data_ptr<float>());
    need_weight = false;
  }
  return result;
}

/// Returns the sum over images and pixels of each channel. The order of libtorch's sum depends on the number of
/// threads, so a dense tensor on a CPU is summed as a batch's mean is.
at::Tensor sum_of_channels(const at::Tensor& dout) {
  const bool fits = !is_traced(dout) && dout.device().is_cpu() && dout.numel() > 0 &&
                    (is_image_type(dout.scalar_type()) || dout.scalar_type() == at::kDouble);
  const auto layout = fits ? native_layout(dout.sizes(), dout.strides()) : std::nullopt;
  std::vector<int64_t> pixels(static_cast<size_t>(dout.dim()) - 1);  // 0, 2, 3, ...
  std::iota(pixels.begin() + 1, pixels.end(), int64_t{2});
  if (!layout) return dout.sum(pixels);
  const Shape3 shape = shape3(dout);
  std::vector<double> mean(static_cast<size_t>(shape.c)), var(mean.size());
  kernels::cpu::abn_statistics({.shape = shape, .layout = *layout, .dtype = dtype_of(dout.scalar_type())},
                               dout.const_data_ptr(), mean.data(), var.data());
  const bool all_finite =
      std::all_of(mean.begin(), mean.end(), [](double value) { return std::isfinite(value); });
  const at::Tensor sums = all_finite ? at::Tensor() : dout.sum(pixels, /*keepdim=*/false, at::kDouble);
  for (size_t c = 0; c < mean.size(); ++c) {
    // The mean of a channel with one infinity may be NaN.
    mean[c] = std::isfinite(mean[c]) ? mean[c] * static_cast<double>(shape.per_channel())
                                     : sums.const_data_ptr<double>()[c];
  }
  // at::tensor makes no tensor of bf16.
  return at::tensor(mean, dout.options().dtype(at::kDouble)).to(dout.scalar_type());
}

Gradients backward_of_type(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                           const ConvolutionOptions& options, std::array<bool, 3> needed, Reads reads) {
  Gradients result = backward_by_kernels(dout, x, weight, options, needed, reads);
  auto& [need_input, need_weight, need_bias] = needed;
  if (need_bias && !need_weight) {
    // For the bias without the weight, oneDNN would compute the weight gradient once more.
    result.bias = sum_of_channels(dout);
    need_bias = false;
  }
  if (!need_input && !need_weight) return result;
  TORCH_INTERNAL_ASSERT(reads == Reads::kX);
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
  return product_precision(autocast.value_or(ProductPrecision{weight.scalar_type()}), x);
}

/// Returns whether a pass may take the batch in parts. A GPU and a traced graph take it whole.
bool may_take_parts(const at::Tensor& x, const at::Tensor& weight) {
  return x.is_cpu() && !is_traced(x) && !is_traced(weight);
}

/// Returns how many images one part of a pass takes: as many as keep f32 copies of x and of the outputs,
/// `out_numel` elements per image, to 16 MiB, and at least one.
int64_t images_per_part(const at::Tensor& x, int64_t out_numel) {
  constexpr int64_t kPartElements = (int64_t{16} << 20) / sizeof(float);
  const int64_t n = x.size(0);
  if (n <= 1) return n;
  const int64_t image = std::max<int64_t>(1, x.numel() / n + out_numel);
  return std::clamp<int64_t>(kPartElements / image, 1, n);
}

/// Writes the result of images `first` and after into `whole`, which has the storage type and n images.
void put(const at::Tensor& part, int64_t first, int64_t n, at::ScalarType storage, at::Tensor& whole) {
  if (part.size(0) == n) {
    whole = part.to(storage);
    return;
  }
  if (!whole.defined()) {
    auto sizes = part.sizes().vec();
    sizes[0] = n;
    whole = at::empty(sizes, part.options().dtype(storage), part.suggest_memory_format());
  }
  whole.narrow(0, first, part.size(0)).copy_(part);
}

/// Runs the forward pass in f32: by a kernel that widens the values as it reads them, or in parts of the
/// batch. The result has the storage type.
at::Tensor forward_in_f32(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, const ConvolutionOptions& options,
                          const ProductPrecision& p, Reads reads) {
  // One operator for a profiler, whatever the number of parts. Backward is one in any case.
  RECORD_FUNCTION("palimpsest::convolution_in_f32", std::vector<c10::IValue>());
  const at::Tensor w = operand(weight, p);
  const auto b = bias ? std::optional(operand(*bias, p)) : std::nullopt;
  if (x.scalar_type() == p.storage)
    if (at::Tensor y = forward_by_kernel(x, w, b, options, reads); y.defined()) return y;
  TORCH_INTERNAL_ASSERT(reads == Reads::kX);
  if (!may_take_parts(x, weight))
    return forward_of_type(operand(x, p), w, b, options, Reads::kX).to(p.storage);
  int64_t out_numel = x.numel() / std::max<int64_t>(1, x.size(0) * x.size(1)) * weight.size(0);
  for (const int64_t stride : options.stride) out_numel /= stride;
  const int64_t n = x.size(0), images = images_per_part(x, out_numel);
  at::Tensor y;
  int64_t first = 0;
  do {
    const at::Tensor part = operand(x.narrow(0, first, std::min(images, n - first)), p);
    put(forward_of_type(part, w, b, options, Reads::kX), first, n, p.storage, y);
    first += images;
  } while (first < n);
  return y;
}

/// What the backward pass of one convolution of x reads and writes; the gradients are undefined at first.
struct Branch {
  at::Tensor dout, weight;
  const ConvolutionOptions* options;
  bool need_weight, need_bias;
  at::Tensor dweight, dbias;
};

bool needs_products_with_x(const std::vector<Branch>& branches) {
  return std::any_of(branches.begin(), branches.end(), [](const Branch& b) { return b.need_weight; });
}

bool needs_parameters(const std::vector<Branch>& branches) {
  return std::any_of(branches.begin(), branches.end(),
                     [](const Branch& b) { return b.need_weight || b.need_bias; });
}

/// Returns whether a backward pass takes the batch in parts. They bound the copies in f32, and the input
/// gradients of several branches. In 16 bits each sum over parts would round the gradients of weights.
bool takes_parts(const std::vector<Branch>& branches, const at::Tensor& x, const ProductPrecision& p) {
  const bool useful = p.compute_in_f32 || branches.size() > 1;
  const bool sums_16_bits = at::isReducedFloatingType(p.compute_type()) && needs_products_with_x(branches);
  return useful && !sums_16_bits && may_take_parts(x, branches[0].weight) && !is_traced(branches[0].dout);
}

/// Runs the passes of 16-bit branches that have kernels which widen values as they read them, clears what they
/// needed, and returns the gradient of x, if such a kernel computes it. That of several branches is their sum
/// in f32, which is rounded once: no such kernel computes it. An x in f32 has none, either: it would need a copy
/// in 16 bits.
at::Tensor backward_by_widening_kernels(std::vector<Branch>& branches, const std::vector<at::Tensor>& weights,
                                        const at::Tensor& x, bool& need_input, const ProductPrecision& p,
                                        Reads reads) {
  at::Tensor dx;
  if (x.scalar_type() != p.storage) return dx;
  for (size_t i = 0; i < branches.size(); ++i) {
    Branch& b = branches[i];
    std::array<bool, 3> needed{need_input && branches.size() == 1, b.need_weight, false};
    Gradients g = backward_by_kernels(b.dout.to(p.storage), x, weights[i], *b.options, needed, reads);
    if (g.input.defined()) {
      dx = std::move(g.input);
      need_input = false;
    }
    if (g.weight.defined()) {
      b.dweight = g.weight.to(p.storage);
      b.need_weight = false;
    }
  }
  return dx;
}

void add_to(at::Tensor& sum, at::Tensor part) {
  if (!part.defined()) return;
  if (sum.defined())
    sum.add_(part);
  else
    sum = std::move(part);
}

/// Runs the passes of all branches in the compute type of p. Adds the gradients of weights and biases to the
/// branches, and returns the gradient of x, the sum over the branches, if it is needed. The order of all sums
/// is fixed. The results have the storage type.
at::Tensor backward_in_compute_type(std::vector<Branch>& branches, const at::Tensor& x, bool need_input,
                                    const ProductPrecision& p, Reads reads) {
  std::vector<at::Tensor> weights;
  weights.reserve(branches.size());
  for (const Branch& b : branches) weights.push_back(operand(b.weight, p));
  at::Tensor dx;
  if (p.compute_in_f32) {
    dx = backward_by_widening_kernels(branches, weights, x, need_input, p, reads);
    if (!need_input && !needs_parameters(branches)) return dx;
  }
  const bool reads_x = needs_products_with_x(branches);
  const auto run = [&](const at::Tensor& x_part, const auto& dout_part) {
    const at::Tensor in = reads_x ? operand(x_part, p) : shape_of(x_part, p.compute_type());
    at::Tensor sum;
    for (size_t i = 0; i < branches.size(); ++i) {
      Branch& b = branches[i];
      Gradients g = backward_of_type(operand(dout_part(b), p), in, weights[i], *b.options,
                                     {need_input, b.need_weight, b.need_bias}, reads);
      add_to(sum, std::move(g.input));
      add_to(b.dweight, std::move(g.weight));
      add_to(b.dbias, std::move(g.bias));
    }
    return sum;
  };
  if (!takes_parts(branches, x, p)) {
    const at::Tensor sum = run(x, [](const Branch& b) { return b.dout; });
    if (need_input) dx = sum.to(p.storage);
  } else {
    const int64_t n = x.size(0);
    int64_t out_numel = 0;
    for (const Branch& b : branches) out_numel += b.dout.numel() / std::max<int64_t>(1, n);
    const int64_t images = images_per_part(x, out_numel);
    int64_t first = 0;
    do {
      const int64_t count = std::min(images, n - first);
      const at::Tensor part =
          run(x.narrow(0, first, count), [&](const Branch& b) { return b.dout.narrow(0, first, count); });
      if (need_input) put(part, first, n, p.storage, dx);
      first += images;
    } while (first < n);
  }
  for (Branch& b : branches) {
    if (b.dweight.defined()) b.dweight = b.dweight.to(p.storage);
    if (b.dbias.defined()) b.dbias = b.dbias.to(p.storage);
  }
  return dx;
}

/// Runs the passes of all branches, each in the precision that it has on this device.
at::Tensor backward_of_branches(std::vector<Branch>& branches, const at::Tensor& x, bool need_input,
                                const std::optional<ProductPrecision>& autocast, Reads reads) {
  const ProductPrecision p = precision_of(x, branches[0].weight, autocast),
                         of_weight = weight_gradient_precision(p, x);
  const bool in_f32 = !at::isReducedFloatingType(p.compute_type());
  if (in_f32 || (branches.size() == 1 && !of_weight.compute_in_f32))
    return backward_in_compute_type(branches, x, need_input, p, reads);
  if (needs_parameters(branches))
    backward_in_compute_type(branches, x, /*need_input=*/false, of_weight, reads);
  if (!need_input) return {};
  std::vector<Branch> of_input = branches;
  for (Branch& b : of_input) b.need_weight = b.need_bias = false;
  return backward_in_compute_type(of_input, x, /*need_input=*/true, p, reads);
}

}  // namespace

at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   const ConvolutionOptions& options, const std::optional<ProductPrecision>& precision,
                   Reads reads) {
  refuse_tangents("convolution", x, weight, bias);
  const ProductPrecision p = precision_of(x, weight, precision);
  if (p.compute_in_f32) return forward_in_f32(x, weight, bias, options, p, reads);
  if (!precision) return forward_of_type(x.to(p.storage), weight, bias, options, reads);
  const auto b = bias ? std::optional(operand(*bias, p)) : std::nullopt;
  return forward_of_type(operand(x, p), operand(weight, p), b, options, reads);
}

Gradients backward(const at::Tensor& dout, const at::Tensor& x, const at::Tensor& weight,
                   const ConvolutionOptions& options, std::array<bool, 3> needed,
                   const std::optional<ProductPrecision>& precision, Reads reads) {
  refuse_tangents("convolution", dout, x, weight);
  std::vector<Branch> one{{dout.resolve_neg(), weight, &options, needed[1], needed[2], {}, {}}};
  Gradients result;
  result.input = backward_of_branches(one, x, needed[0], precision, reads);
  result.weight = std::move(one[0].dweight);
  result.bias = std::move(one[0].dbias);
  return result;
}

ParallelGradients parallel_backward(at::TensorList douts, const at::Tensor& x, at::TensorList weights,
                                    const std::vector<ConvolutionOptions>& options, bool need_input,
                                    const std::vector<bool>& need_weights,
                                    const std::optional<ProductPrecision>& precision) {
  refuse_tangents("parallel_convolutions", douts, x, weights);
  std::vector<Branch> branches;
  branches.reserve(weights.size());
  for (size_t i = 0; i < weights.size(); ++i)
    branches.push_back({douts[i].resolve_neg(), weights[i], &options[i], need_weights[i], false, {}, {}});
  ParallelGradients result;
  result.input = backward_of_branches(branches, x, need_input, precision, Reads::kX);
  for (Branch& b : branches) result.weights.push_back(std::move(b.dweight));
  return result;
}

namespace {

/// Returns the problem of one pass of a convolution of relu(x) for our kernels; none if they do not take these
/// tensors.
std::optional<Conv2dProblem> relu_problem(const at::Tensor& x, const at::Tensor& weight,
                                          const ConvolutionOptions& options,
                                          const std::optional<ProductPrecision>& precision, Conv2dPass pass) {
  ProductPrecision p = precision_of(x, weight, precision);
  if (pass == Conv2dPass::kBackwardWeight) p = weight_gradient_precision(p, x);
  if (p.compute_type() != at::kFloat || x.scalar_type() != p.storage) return std::nullopt;
  return kernel_problem(x, weight, options, Reads::kReluOfX);
}

bool has_relu_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options,
                   const std::optional<ProductPrecision>& precision, Conv2dPass pass) {
  const auto problem = relu_problem(x, weight, options, precision, pass);
  return problem && is_faster(*problem, pass);
}

}  // namespace

bool forward_reads_relu(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                        const ConvolutionOptions& options, const std::optional<ProductPrecision>& precision) {
  const auto problem = relu_problem(x, weight, options, precision, Conv2dPass::kForward);
  return problem && runs_forward(*problem, bias);
}

bool weight_gradient_reads_relu(const at::Tensor& x, const at::Tensor& weight,
                                const ConvolutionOptions& options,
                                const std::optional<ProductPrecision>& precision) {
  return has_relu_pass(x, weight, options, precision, Conv2dPass::kBackwardWeight);
}

bool backward_reads_relu(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options,
                         const std::optional<ProductPrecision>& precision) {
  return has_relu_pass(x, weight, options, precision, Conv2dPass::kBackwardInput) &&
         has_relu_pass(x, weight, options, precision, Conv2dPass::kBackwardWeight);
}

bool has_own_pass(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& options) {
  if (x.scalar_type() == weight.scalar_type() &&
      weight_gradient_precision(precision_of(x, weight, std::nullopt), x).compute_in_f32)
    return true;
  const auto problem = kernel_problem(x, weight, options);
  return problem && x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
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
