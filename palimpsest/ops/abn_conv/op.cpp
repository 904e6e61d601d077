#include "palimpsest/ops/abn_conv.h"

#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/tracing.h"
#include "palimpsest/ops/convolution/functional.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <tuple>
#include <utility>

namespace palimpsest::ops::abn_conv_detail {
namespace {

using convolution_detail::Reads;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kInstead = "a separate batch_norm, activation and convolution";

/// Returns whether z is the ReLU of the saved tensor.
bool is_relu_of_saved(const abn_detail::Settings& settings) {
  return settings.activation == Activation::kReLU && settings.saved == Saved::kPreActivation;
}

/// The convolution of one call.
struct ConvolutionCall {
  const ConvolutionOptions& options;
  std::optional<ProductPrecision> precision;

  at::Tensor forward(const at::Tensor& z, const at::Tensor& weight, const OptionalTensor& bias,
                     Reads reads = Reads::kX) const {
    return convolution_detail::forward(z, weight, bias, options, precision, reads);
  }

  /// Returns whether the convolution applies the activation itself to y, which lies or will lie in a tensor
  /// like `like`: then z is never a tensor.
  bool activates(const abn_detail::Settings& settings, const at::Tensor& like, const at::Tensor& weight,
                 const OptionalTensor& bias) const {
    return is_relu_of_saved(settings) &&
           convolution_detail::forward_reads_relu(like, weight, bias, options, precision);
  }
};

void save_convolution(AutogradContext* ctx, const ConvolutionCall& call, bool has_bias) {
  ctx->saved_data["bias"] = has_bias;
  convolution_detail::save_options(ctx, call.options);
  save_precision(ctx, call.precision);
}

bool has_bias(AutogradContext* ctx) {
  return ctx->saved_data["bias"].toBool();
}

/// The backward pass of the convolution. dz is computed first: the pass from dz to dx reads the saved tensor
/// in any case, and the same pass recomputes z for the weight gradient.
class ConvolutionBackward {
 public:
  ConvolutionBackward(AutogradContext* ctx, const at::Tensor& dout, const at::Tensor& weight)
      : ctx_(ctx), dout_(dout), weight_(weight) {}

  /// Returns dz. Needs only the shape and layout of z, which are those of `saved_values`.
  at::Tensor input(const at::Tensor& saved_values) const {
    return run(saved_values, {true, false, false}).input.to(saved_values.scalar_type());
  }

  /// Returns the gradients of weight and bias.
  std::tuple<at::Tensor, at::Tensor> parameters(const at::Tensor& z, bool weight, bool bias,
                                                Reads reads = Reads::kX) const {
    auto g = run(z, {false, weight, bias}, reads);
    return {std::move(g.weight), std::move(g.bias)};
  }

  /// Returns all gradients of conv(relu(y)), by kernels that read y; none if there are no such kernels.
  std::optional<convolution_detail::Gradients> of_relu(const at::Tensor& y,
                                                       std::array<bool, 3> needed) const {
    if (is_traced(dout_) || !convolution_detail::backward_reads_relu(
                                y, weight_, convolution_detail::saved_options(ctx_), saved_precision(ctx_)))
      return std::nullopt;
    return run(y, needed, Reads::kReluOfX);
  }

  /// Returns whether the weight gradient applies the activation itself to the saved tensor.
  bool activates(const abn_detail::BackwardArguments& layer) const {
    return is_relu_of_saved(layer.settings) && !is_traced(dout_) &&
           convolution_detail::weight_gradient_reads_relu(
               layer.saved_values, weight_, convolution_detail::saved_options(ctx_), saved_precision(ctx_));
  }

 private:
  convolution_detail::Gradients run(const at::Tensor& z, std::array<bool, 3> needed,
                                    Reads reads = Reads::kX) const {
    return convolution_detail::backward(dout_, z, weight_, convolution_detail::saved_options(ctx_), needed,
                                        saved_precision(ctx_), reads);
  }

  AutogradContext* ctx_;
  const at::Tensor &dout_, &weight_;
};

struct BlockGradients {
  abn_detail::Gradients layer;
  at::Tensor conv_weight, conv_bias;
};

BlockGradients differentiate(const ConvolutionBackward& convolution, abn_detail::BackwardArguments& layer,
                             bool need_weight, bool need_bias) {
  BlockGradients result;
  const bool activates = need_weight && convolution.activates(layer);
  if (activates)  // before dz, while dout is in the cache
    std::tie(result.conv_weight, result.conv_bias) =
        convolution.parameters(layer.saved_values, need_weight, need_bias, Reads::kReluOfX);
  if (layer.need_dx || layer.need_sums) {
    layer.need_z = need_weight && layer.need_dx && !activates;
    result.layer = backward_stealing(convolution.input(layer.saved_values), layer);
  }
  if (!activates && (need_weight || need_bias)) {
    at::Tensor z = std::move(result.layer.z);
    if (!z.defined())  // the bias alone needs no values of z
      z = need_weight ? recompute_output(layer.saved_values, layer.settings, layer.mean, layer.inv_std)
                      : layer.saved_values;
    std::tie(result.conv_weight, result.conv_bias) = convolution.parameters(z, need_weight, need_bias);
  }
  return result;
}

struct AbnConvCall {
  const abn_detail::ForwardArguments& arguments;
  const ConvolutionCall& convolution;
  bool consume;  ///< x may be overwritten
};

class AbnConvFunction : public torch::autograd::Function<AbnConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& /*weight*/,
                            const OptionalTensor& /*bias*/, const at::Tensor& conv_weight,
                            const OptionalTensor& conv_bias, AbnConvCall* call) {
    abn_detail::ForwardArguments arguments = call->arguments;
    const bool activates = call->convolution.activates(arguments.settings, x, conv_weight, conv_bias);
    if (activates) {  // the layer writes y alone
      arguments.settings.activation = Activation::kIdentity;
      arguments.settings.saved = Saved::kOutput;
    }
    at::Tensor saved_values;
    abn_detail::ForwardResult result;
    if (call->consume) {
      saved_values = x.detach();  // shares the version of x: operators that saved x before notice the write
      result = forward_(saved_values, arguments);
    } else {
      result = abn_detail::forward(x, arguments);
      saved_values = abn_detail::saved_tensor(arguments.settings.saved, x, result);
    }
    save(ctx, saved_values, call->arguments, result.statistics, {conv_weight});
    save_convolution(ctx, call->convolution, conv_bias.has_value());
    return activates ? call->convolution.forward(saved_values, conv_weight, conv_bias, Reads::kReluOfX)
                     : call->convolution.forward(result.z, conv_weight, conv_bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward("abn_conv", kInstead);
    const at::Tensor dout = std::move(gradients[0]);
    const variable_list saved = ctx->get_saved_variables();
    abn_detail::BackwardArguments arguments = abn_detail::saved_arguments(ctx, saved);
    const abn_detail::GradientSlots slots(ctx, arguments, /*first_slot=*/0);
    const bool need_weight = ctx->needs_input_grad(slots.next());
    const bool need_bias = has_bias(ctx) && ctx->needs_input_grad(slots.next() + 1);
    BlockGradients g =
        differentiate({ctx, dout, saved[abn_detail::kSavedTensors]}, arguments, need_weight, need_bias);
    variable_list result = slots.in_order(std::move(g.layer), {});
    result.pop_back();  // there is no residual
    result.insert(result.end(), {std::move(g.conv_weight), std::move(g.conv_bias), at::Tensor()});
    return result;
  }
};

class ActivateConvFunction : public torch::autograd::Function<ActivateConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& conv_weight,
                            const OptionalTensor& conv_bias, const abn_detail::ForwardArguments* arguments,
                            const ConvolutionCall* convolution) {
    const at::Tensor ones = at::ones({y.size(1)}, y.options().dtype(at::kDouble));
    const at::Tensor no_channels = at::empty({0}, y.options());
    save(ctx, y, *arguments, {ones, ones, no_channels, at::empty({0}, y.options().dtype(at::kLong)), {}},
         {conv_weight});
    ctx->saved_data["training"] = false;
    save_convolution(ctx, *convolution, conv_bias.has_value());
    if (convolution->activates(arguments->settings, y, conv_weight, conv_bias))
      return convolution->forward(y, conv_weight, conv_bias, Reads::kReluOfX);
    return convolution->forward(recompute_output(y, arguments->settings, ones, ones), conv_weight, conv_bias);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward("activate_conv", "a separate activation and convolution");
    const at::Tensor dout = std::move(gradients[0]);
    const variable_list saved = ctx->get_saved_variables();
    abn_detail::BackwardArguments arguments = abn_detail::saved_arguments(ctx, saved);
    arguments.need_sums = false;
    arguments.need_dx = ctx->needs_input_grad(0);
    const bool need_weight = ctx->needs_input_grad(1);
    const bool need_bias = has_bias(ctx) && ctx->needs_input_grad(2);
    const ConvolutionBackward convolution(ctx, dout, saved[abn_detail::kSavedTensors]);
    if (is_relu_of_saved(arguments.settings))
      if (auto g = convolution.of_relu(arguments.saved_values, {arguments.need_dx, need_weight, need_bias}))
        return {std::move(g->input), std::move(g->weight), std::move(g->bias), at::Tensor(), at::Tensor()};
    BlockGradients g = differentiate(convolution, arguments, need_weight, need_bias);
    return {std::move(g.layer.dx), std::move(g.conv_weight), std::move(g.conv_bias), at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor run(at::Tensor x, const NormalizationTensors& norm, const at::Tensor& conv_weight,
               const OptionalTensor& conv_bias, const ConvolutionOptions& convolution, AbnOptions options,
               bool consume) {
  const OptionalTensor no_residual;
  const abn_detail::Inputs inputs{x, norm, no_residual};
  check(inputs, options);
  convolution_detail::check("abn_conv", x, conv_weight, conv_bias, convolution);
  if (consume) {
    abn_detail::check_apart_from_x("conv_weight", conv_weight, x);
    abn_detail::check_apart_from_x("conv_bias", conv_bias, x);
    refuse_tangents("abn_conv_", conv_weight, conv_bias);  // before x is written over
  }
  options = abn_detail::resolved(options, x.scalar_type());
  const ConvolutionCall convolution_call{convolution, autocast_precision(x)};
  if (saves_output(options.saved)) {
    const at::Tensor z = consume ? abn_(std::move(x), norm, options) : abn(x, norm, options);
    return ops::convolution(convolution_call.precision ? z : z.to(conv_weight.scalar_type()), conv_weight,
                            conv_bias, convolution);
  }
  refuse_tangents("abn_conv", x, norm.weight, norm.bias, conv_weight, conv_bias);
  consume = consume && options.saved != Saved::kInput;
  const bool recorded = requires_gradient(inputs) ||
                        (c10::GradMode::is_enabled() &&
                         (conv_weight.requires_grad() || (conv_bias && conv_bias->requires_grad())));
  if (consume) abn_detail::check_in_place(inputs, options.saved, recorded);
  const auto arguments = forward_arguments(inputs, options, recorded);
  if (!recorded) {
    const auto result = consume ? forward_(x, arguments) : forward(x, arguments);
    return convolution_call.forward(result.z, conv_weight, conv_bias);
  }
  AbnConvCall call{arguments, convolution_call, consume};
  return AbnConvFunction::apply(x, norm.weight, norm.bias, conv_weight, conv_bias, &call);
}

}  // namespace
}  // namespace palimpsest::ops::abn_conv_detail

namespace palimpsest::ops {

at::Tensor abn_conv(const at::Tensor& x, const NormalizationTensors& norm, const at::Tensor& conv_weight,
                    const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                    const AbnOptions& options) {
  return abn_conv_detail::run(x, norm, conv_weight, conv_bias, convolution, options, /*consume=*/false);
}

at::Tensor abn_conv_(at::Tensor x, const NormalizationTensors& norm, const at::Tensor& conv_weight,
                     const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                     const AbnOptions& options) {
  return abn_conv_detail::run(std::move(x), norm, conv_weight, conv_bias, convolution, options,
                              /*consume=*/true);
}

at::Tensor activate_conv(const at::Tensor& y, const at::Tensor& conv_weight,
                         const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                         Activation activation, double activation_param) {
  using namespace abn_conv_detail;
  convolution_detail::check("activate_conv", y, conv_weight, conv_bias, convolution);
  const ConvolutionCall call{convolution, autocast_precision(y)};
  abn_detail::ForwardArguments arguments;
  arguments.settings.activation = abn_detail::resolved(activation, activation_param);
  arguments.settings.activation_param = activation_param;
  arguments.settings.saved = Saved::kPreActivation;
  return ActivateConvFunction::apply(y, conv_weight, conv_bias, &arguments, &call);
}

}  // namespace palimpsest::ops
