#include "palimpsest/ops/abn_conv.h"

#include "palimpsest/ops/abn/autograd.h"
#include "palimpsest/ops/abn/check.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/convolution/functional.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <tuple>
#include <utility>

namespace palimpsest::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The convolution as a call hands it on.
struct ConvolutionCall {
  const ConvolutionOptions& options;
  std::optional<ProductPrecision> precision;
};

void save_convolution(AutogradContext* ctx, const ConvolutionCall& call, bool has_bias) {
  ctx->saved_data["bias"] = has_bias;
  save_options(ctx, call.options);
  save_precision(ctx, call.precision);
}

bool has_bias(AutogradContext* ctx) {
  return ctx->saved_data["bias"].toBool();
}

/// The backward pass of the convolution. dz comes first: the pass from dz to dx reads what was kept anyway
/// and makes z again on its way, for the kernel's gradient.
class ConvolutionBackward {
 public:
  ConvolutionBackward(AutogradContext* ctx, const at::Tensor& dout, const at::Tensor& kernel)
      : ctx_(ctx), dout_(dout), kernel_(kernel) {}

  /// dz; of z it needs shape and layout only, which are those of `kept`.
  at::Tensor input(const at::Tensor& kept) const {
    return run(kept, {true, false, false}).input.to(kept.scalar_type());
  }

  /// The gradients of kernel and bias.
  std::tuple<at::Tensor, at::Tensor> parameters(const at::Tensor& z, bool kernel, bool bias) const {
    auto g = run(z, {false, kernel, bias});
    return {std::move(g.weight), std::move(g.bias)};
  }

 private:
  ConvolutionGradients run(const at::Tensor& z, std::array<bool, 3> needed) const {
    return convolution_backward(dout_, z, kernel_, saved_options(ctx_), needed, saved_precision(ctx_));
  }

  AutogradContext* ctx_;
  const at::Tensor &dout_, &kernel_;
};

struct BlockGradients {
  AbnGradients layer;
  at::Tensor dkernel, dkernel_bias;
};

BlockGradients differentiate(const ConvolutionBackward& convolution, AbnBackwardArguments& layer,
                             bool need_kernel, bool need_kernel_bias) {
  BlockGradients result;
  if (layer.need_dx || layer.need_sums) {
    layer.need_z = need_kernel && layer.need_dx;
    at::Tensor dz = convolution.input(layer.kept);
    const bool overwrite = layer.need_dx && ours_to_overwrite(dz, layer.kept);
    result.layer = overwrite ? call_backward_(std::move(dz), layer) : call_backward(dz, layer);
  }
  if (need_kernel || need_kernel_bias) {
    at::Tensor z = std::move(result.layer.z);
    if (!z.defined())  // the bias alone needs no values of it
      z = need_kernel ? call_rebuild(layer.kept, layer.settings, layer.mean, layer.inv_std) : layer.kept;
    std::tie(result.dkernel, result.dkernel_bias) = convolution.parameters(z, need_kernel, need_kernel_bias);
  }
  return result;
}

struct AbnConvCall {
  const AbnForwardArguments& arguments;
  const ConvolutionCall& convolution;
  bool consume;  ///< x may be written over
};

class AbnConvFunction : public torch::autograd::Function<AbnConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& weight,
                            const OptionalTensor& bias, const at::Tensor& kernel_weight,
                            const OptionalTensor& kernel_bias, AbnConvCall* call) {
    const Saved keep = call->arguments.settings.keep;
    at::Tensor kept;
    AbnForwardResult r;
    if (call->consume) {
      kept = x.detach();  // shares x's version: who saved x before will notice
      r = call_forward_(kept, call->arguments);
    } else {
      r = call_forward(x, call->arguments);
      kept = kept_of(keep, x, r);
    }
    save(ctx, kept, call->arguments, r.statistics, {kernel_weight});
    save_convolution(ctx, call->convolution, kernel_bias.has_value());
    return convolution_forward(r.z, kernel_weight, kernel_bias, call->convolution.options,
                               call->convolution.precision);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_second_derivative("abn_conv");
    const at::Tensor dout = std::move(gradients[0]);
    const variable_list saved = ctx->get_saved_variables();
    AbnBackwardArguments arguments = saved_arguments(ctx, saved);
    const AbnEdges edges(ctx, arguments, /*first_edge=*/0);
    const bool need_kernel = ctx->needs_input_grad(edges.next());
    const bool need_kernel_bias = has_bias(ctx) && ctx->needs_input_grad(edges.next() + 1);
    BlockGradients g =
        differentiate({ctx, dout, saved[kSavedTensors]}, arguments, need_kernel, need_kernel_bias);
    variable_list result = edges.in_order(std::move(g.layer), {});
    result.pop_back();  // no residual
    result.insert(result.end(), {std::move(g.dkernel), std::move(g.dkernel_bias), at::Tensor()});
    return result;
  }
};

class ActivateConvFunction : public torch::autograd::Function<ActivateConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, const at::Tensor& kernel_weight,
                            const OptionalTensor& kernel_bias, const AbnForwardArguments* arguments,
                            const ConvolutionCall* convolution) {
    const at::Tensor ones = at::ones({t.size(1)}, t.options().dtype(at::kDouble));
    save(ctx, t, *arguments, {ones, ones, at::empty({0}, t.options().dtype(at::kByte)), {}}, {kernel_weight});
    ctx->saved_data["training"] = false;
    save_convolution(ctx, *convolution, kernel_bias.has_value());
    return convolution_forward(call_rebuild(t, arguments->settings, ones, ones), kernel_weight, kernel_bias,
                               convolution->options, convolution->precision);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_second_derivative("activate_conv");
    const at::Tensor dout = std::move(gradients[0]);
    const variable_list saved = ctx->get_saved_variables();
    AbnBackwardArguments arguments = saved_arguments(ctx, saved);
    arguments.need_sums = false;
    arguments.need_dx = ctx->needs_input_grad(0);
    const bool need_kernel_bias = has_bias(ctx) && ctx->needs_input_grad(2);
    BlockGradients g = differentiate({ctx, dout, saved[kSavedTensors]}, arguments, ctx->needs_input_grad(1),
                                     need_kernel_bias);
    return {std::move(g.layer.dx), std::move(g.dkernel), std::move(g.dkernel_bias), at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor run(at::Tensor x, const NormalizationTensors& norm, const at::Tensor& kernel_weight,
               const OptionalTensor& kernel_bias, const ConvolutionOptions& convolution, AbnOptions options,
               bool consume) {
  const OptionalTensor none;
  const AbnTensors tensors{x, norm.weight, norm.bias, norm.running_mean, norm.running_var, none};
  check_abn(tensors, options);
  check_convolution("abn_conv", x, kernel_weight, convolution);
  const ConvolutionCall convolution_call{convolution, autocast_precision(x)};
  if (saves_output(options.keep)) {
    const auto layer = [&, &n = norm] {
      if (consume) return abn_(std::move(x), n.weight, n.bias, n.running_mean, n.running_var, options, none);
      return abn(x, n.weight, n.bias, n.running_mean, n.running_var, options, none);
    };
    const at::Tensor z = layer();
    return convolve(convolution_call.precision ? z : z.to(kernel_weight.scalar_type()), kernel_weight,
                    kernel_bias, convolution);
  }
  options.keep = safe_keep(options.keep, tensors);
  consume = consume && options.keep != Saved::kInput;
  const bool recorded = differentiable(tensors) ||
                        (c10::GradMode::is_enabled() &&
                         (kernel_weight.requires_grad() || (kernel_bias && kernel_bias->requires_grad())));
  if (consume) check_in_place(x, options.keep, recorded);
  const auto arguments = arguments_of(tensors, options, recorded);
  AbnConvCall call{arguments, convolution_call, consume};
  at::Tensor out;
  if (recorded) {
    out = AbnConvFunction::apply(x, norm.weight, norm.bias, kernel_weight, kernel_bias, &call);
  } else {
    const AbnForwardResult r = consume ? call_forward_(x, arguments) : call_forward(x, arguments);
    out = convolution_forward(r.z, kernel_weight, kernel_bias, convolution, convolution_call.precision);
  }
  return out;
}

}  // namespace

at::Tensor abn_conv(const at::Tensor& x, const NormalizationTensors& norm, const at::Tensor& kernel,
                    const OptionalTensor& kernel_bias, const ConvolutionOptions& convolution,
                    const AbnOptions& options) {
  return run(x, norm, kernel, kernel_bias, convolution, options, false);
}

at::Tensor abn_conv_(at::Tensor x, const NormalizationTensors& norm, const at::Tensor& kernel,
                     const OptionalTensor& kernel_bias, const ConvolutionOptions& convolution,
                     const AbnOptions& options) {
  return run(std::move(x), norm, kernel, kernel_bias, convolution, options, true);
}

at::Tensor activate_conv(const at::Tensor& t, const at::Tensor& kernel_weight,
                         const OptionalTensor& kernel_bias, const ConvolutionOptions& convolution,
                         Activation activation, double activation_param) {
  check_convolution("activate_conv", t, kernel_weight, convolution);
  const ConvolutionCall call{convolution, autocast_precision(t)};
  AbnForwardArguments arguments;
  arguments.settings.activation = activation;
  arguments.settings.activation_param = activation_param;
  arguments.settings.keep = Saved::kPreActivation;
  return ActivateConvFunction::apply(t, kernel_weight, kernel_bias, &arguments, &call);
}

}  // namespace palimpsest::ops
