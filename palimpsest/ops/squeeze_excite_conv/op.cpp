#include "palimpsest/ops/squeeze_excite_conv.h"

#include "palimpsest/kernels/gates.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/convolution/functional.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/hardsigmoid.h>
#include <ATen/ops/hardsigmoid_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <utility>

namespace palimpsest::ops::squeeze_excite_conv_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

constexpr const char *kName = "squeeze_excite_conv", *kGatedName = "gated_conv";

at::Tensor per_image(const at::Tensor& values, const at::Tensor& like) {
  return values.to(like.scalar_type()).view({like.size(0), like.size(1), 1, 1});
}

/// The activation, the means and the product with the gates. Our kernels run in f32 on a CPU, channels-last;
/// elsewhere libtorch's operators do, around the activation of ops/abn.h. Means and gates: (N, C), f32, or f64
/// for f64 y.
class GatedActivation {
 public:
  GatedActivation(const at::Tensor& y, Activation activation, double param)
      : y_(y), activation_(activation), param_(param) {
    const bool fits = y.device().is_cpu() && y.scalar_type() == at::kFloat && !y.is_neg() &&
                      native_layout(y.sizes(), y.strides()) == Layout::kChannelsLast;
    problem_ = {fits ? shape3(y) : Shape3{}, activation, param};
    own_ = fits && kernels::cpu::has_gates(problem_);
  }

  at::Tensor means() {
    if (!own_) {
      z_ = activated();
      return z_.mean({2, 3}, /*keepdim=*/false, accumulate_type(y_.scalar_type()));
    }
    at::Tensor result = at::empty({y_.size(0), y_.size(1)}, y_.options());
    kernels::cpu::activation_means(problem_, values(y_), result.mutable_data_ptr<float>());
    return result;
  }

  /// Returns act(y) * gate.
  at::Tensor product(const at::Tensor& gate) {
    if (!own_) {
      at::Tensor z = z_.defined() ? std::move(z_) : activated();
      z_ = at::Tensor();
      const at::Tensor g = per_image(gate, y_);
      return z.is_same(y_) ? z * g : z.mul_(g);
    }
    at::Tensor result = at::empty_like(y_);
    kernels::cpu::gated_forward(problem_, values(y_), values(gate), result.mutable_data_ptr<float>());
    return result;
  }

  /// Returns the gradient of the gates, and the product if it is needed.
  std::pair<at::Tensor, at::Tensor> backward_gate(const at::Tensor& dproduct, const at::Tensor& gate,
                                                  bool need_product) {
    if (!own_) {
      z_ = activated();
      at::Tensor dgate = (dproduct * z_).sum(at::IntArrayRef{2, 3}, /*keepdim=*/false, gate.scalar_type());
      return {std::move(dgate), need_product ? product(gate) : at::Tensor()};
    }
    at::Tensor dgate = at::empty_like(gate), again = need_product ? at::empty_like(y_) : at::Tensor();
    kernels::cpu::gated_backward_reduce(problem_, values(y_), values(gate), values(like_y(dproduct)),
                                        dgate.mutable_data_ptr<float>(),
                                        need_product ? again.mutable_data_ptr<float>() : nullptr);
    return {std::move(dgate), std::move(again)};
  }

  /// Returns the gradient of y, written over dproduct. `dmean`: the gradient that each pixel gets through the
  /// means; undefined: none.
  at::Tensor backward(at::Tensor dproduct, const at::Tensor& gate, const at::Tensor& dmean = {}) const {
    if (!own_) {
      dproduct.mul_(per_image(gate, y_));
      if (dmean.defined()) dproduct.add_(per_image(dmean, y_));
      return backward_activation(std::move(dproduct));
    }
    dproduct = like_y(dproduct);
    const at::Tensor m = dmean.defined() ? dmean.contiguous() : at::zeros_like(gate);
    auto* const written = dproduct.mutable_data_ptr<float>();
    kernels::cpu::gated_backward_apply(problem_, values(y_), values(gate), values(m), written, written);
    return dproduct;
  }

 private:
  static const float* values(const at::Tensor& t) { return t.const_data_ptr<float>(); }
  at::Tensor like_y(const at::Tensor& t) const { return contiguous_in(Layout::kChannelsLast, t); }

  abn_detail::Settings settings() const {
    abn_detail::Settings s;
    s.activation = activation_;
    s.activation_param = param_;
    s.saved = Saved::kPreActivation;
    return s;
  }
  at::Tensor ones() const { return at::ones({y_.size(1)}, y_.options().dtype(at::kDouble)); }

  /// Returns act(y); y itself for the identity.
  at::Tensor activated() const {
    return activation_ == Activation::kIdentity ? y_ : recompute_output(y_, settings(), ones(), ones());
  }

  /// Returns dz * act'(y), written over dz where that is possible.
  at::Tensor backward_activation(at::Tensor dz) const {
    if (activation_ == Activation::kIdentity) return dz;
    abn_detail::BackwardArguments a;
    a.settings = settings();
    a.saved_values = y_;
    a.channel_values = at::empty({0}, y_.options());
    a.channel_index = at::empty({0}, y_.options().dtype(at::kLong));
    a.mean = a.inv_std = ones();
    a.training = a.need_sums = false;
    return backward_stealing(std::move(dz), a).dx;
  }

  at::Tensor y_;
  Activation activation_;
  double param_;
  kernels::GatesProblem problem_;
  bool own_ = false;  ///< our kernels run
  at::Tensor z_;      ///< of the last means(), for the product that follows
};

/// The gates of a batch. All tensors are f32, or f64 for f64 y; (N, C) but where noted.
class Gates {
 public:
  Gates(const SqueezeExcitation& excitation, at::ScalarType type)
      : e_(excitation),
        squeeze_(matrix(excitation.squeeze_weight, type)),
        excite_(matrix(excitation.excite_weight, type)),
        squeeze_bias_(excitation.squeeze_bias.to(type)),
        excite_bias_(excitation.excite_bias.to(type)) {}

  at::Tensor forward(const at::Tensor& pooled) {
    before_squeezed_ = at::addmm(squeeze_bias_, pooled, squeeze_.t());
    squeezed_ = e_.squeeze_activation == SqueezeActivation::kSiLU ? at::silu(before_squeezed_)
                                                                  : at::relu(before_squeezed_);
    before_gate_ = at::addmm(excite_bias_, squeezed_, excite_.t());
    return gate_ = e_.gate_activation == GateActivation::kSigmoid ? at::sigmoid(before_gate_)
                                                                  : at::hardsigmoid(before_gate_);
  }

  struct Gradients {
    at::Tensor pooled, squeeze_weight, squeeze_bias, excite_weight, excite_bias;
  };
  /// Takes the gradient of the gates that forward() returned.
  Gradients backward(const at::Tensor& pooled, const at::Tensor& dgate) const {
    const at::Tensor dbefore_gate = e_.gate_activation == GateActivation::kSigmoid
                                        ? at::sigmoid_backward(dgate, gate_)
                                        : at::hardsigmoid_backward(dgate, before_gate_);
    const at::Tensor dsqueezed = dbefore_gate.mm(excite_);
    const at::Tensor dbefore_squeezed = e_.squeeze_activation == SqueezeActivation::kSiLU
                                            ? at::silu_backward(dsqueezed, before_squeezed_)
                                            : at::threshold_backward(dsqueezed, squeezed_, 0);
    return {dbefore_squeezed.mm(squeeze_), like(e_.squeeze_weight, dbefore_squeezed.t().mm(pooled)),
            like(e_.squeeze_bias, dbefore_squeezed.sum(0)),
            like(e_.excite_weight, dbefore_gate.t().mm(squeezed_)),
            like(e_.excite_bias, dbefore_gate.sum(0))};
  }

 private:
  static at::Tensor matrix(const at::Tensor& weight, at::ScalarType type) {
    return weight.to(type).flatten(1);
  }
  static at::Tensor like(const at::Tensor& parameter, const at::Tensor& gradient) {
    return gradient.reshape(parameter.sizes()).to(parameter.scalar_type());
  }

  const SqueezeExcitation& e_;
  at::Tensor squeeze_, excite_, squeeze_bias_, excite_bias_;
  at::Tensor before_squeezed_, squeezed_, before_gate_, gate_;  // (N, R) twice, (N, C) twice
};

/// The activation and the convolution of a call. Its gates come between them.
struct Call {
  const ConvolutionOptions& convolution;
  std::optional<ProductPrecision> precision;
  Activation activation;
  double activation_param;

  void save(AutogradContext* ctx, bool has_bias) const {
    ctx->saved_data["bias"] = has_bias;
    ctx->saved_data["activation"] = static_cast<int64_t>(activation);
    ctx->saved_data["param"] = activation_param;
    convolution_detail::save_options(ctx, convolution);
    save_precision(ctx, precision);
  }
};

/// The backward of a saved Call.
class SavedCall {
 public:
  /// `weight_input`: the place of the convolution's weight among the function's inputs; its bias follows.
  SavedCall(AutogradContext* ctx, at::Tensor dout, const at::Tensor& y, const at::Tensor& conv_weight,
            size_t weight_input)
      : ctx_(ctx), dout_(std::move(dout)), y_(y), conv_weight_(conv_weight), weight_input_(weight_input) {}

  GatedActivation activation() const {
    return {y_, static_cast<Activation>(ctx_->saved_data["activation"].toInt()),
            ctx_->saved_data["param"].toDouble()};
  }
  bool needs_weight() const { return ctx_->needs_input_grad(weight_input_); }

  /// Returns the gradient of the convolution's input, in y's dtype.
  at::Tensor product_gradient() const { return run(y_, {true, false, false}).input.to(y_.scalar_type()); }

  /// Puts the gradients of weight and bias into their places of `result`, if they are needed. product() returns the
  /// convolution's input; it is called if the weight's gradient is needed.
  template <class Product>
  void put_parameter_gradients(variable_list& result, const Product& product) const {
    const bool need_bias = ctx_->saved_data["bias"].toBool() && ctx_->needs_input_grad(weight_input_ + 1);
    if (!needs_weight() && !need_bias) return;
    auto g = run(needs_weight() ? product() : y_, {false, needs_weight(), need_bias});
    result[weight_input_] = std::move(g.weight);
    result[weight_input_ + 1] = std::move(g.bias);
  }

 private:
  convolution_detail::Gradients run(const at::Tensor& x, std::array<bool, 3> needed) const {
    return convolution_detail::backward(dout_, x, conv_weight_, convolution_detail::saved_options(ctx_),
                                        needed, saved_precision(ctx_));
  }

  AutogradContext* ctx_;
  at::Tensor dout_, y_, conv_weight_;
  size_t weight_input_;
};

class SqueezeExciteConvFunction : public torch::autograd::Function<SqueezeExciteConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& squeeze_weight,
                            const at::Tensor& squeeze_bias, const at::Tensor& excite_weight,
                            const at::Tensor& excite_bias, const at::Tensor& conv_weight,
                            const OptionalTensor& conv_bias, const SqueezeExcitation* excitation,
                            const Call* call) {
    GatedActivation activation(y, call->activation, call->activation_param);
    const at::Tensor pooled = activation.means();
    const at::Tensor gate = Gates(*excitation, pooled.scalar_type()).forward(pooled);
    ctx->save_for_backward(
        {y, squeeze_weight, squeeze_bias, excite_weight, excite_bias, conv_weight, pooled});
    ctx->saved_data["squeeze"] = static_cast<int64_t>(excitation->squeeze_activation);
    ctx->saved_data["gate"] = static_cast<int64_t>(excitation->gate_activation);
    call->save(ctx, conv_bias.has_value());
    return convolution_detail::forward(activation.product(gate), conv_weight, conv_bias, call->convolution,
                                       call->precision);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward(kName, "separate activation, gates and convolution");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &y = saved[0], &pooled = saved[6];
    const SavedCall call(ctx, std::move(gradients[0]), y, saved[5], 5);
    const auto number = [&](const char* name) { return ctx->saved_data[name].toInt(); };
    const SqueezeExcitation excitation{saved[1],
                                       saved[2],
                                       saved[3],
                                       saved[4],
                                       static_cast<SqueezeActivation>(number("squeeze")),
                                       static_cast<GateActivation>(number("gate"))};
    GatedActivation activation = call.activation();
    Gates gates(excitation, pooled.scalar_type());
    const at::Tensor gate = gates.forward(pooled);
    const bool needs_gate = ctx->needs_input_grad(0) || ctx->needs_input_grad(1) ||
                            ctx->needs_input_grad(2) || ctx->needs_input_grad(3) || ctx->needs_input_grad(4);
    variable_list result(9);
    at::Tensor product;
    if (needs_gate) {
      at::Tensor dproduct = call.product_gradient();
      at::Tensor dgate;
      std::tie(dgate, product) = activation.backward_gate(dproduct, gate, call.needs_weight());
      auto g = gates.backward(pooled, dgate);
      if (ctx->needs_input_grad(0)) {
        const auto pixels = static_cast<double>(y.size(2) * y.size(3));
        result[0] = activation.backward(std::move(dproduct), gate, g.pooled.div_(pixels));
      }
      result[1] = std::move(g.squeeze_weight);
      result[2] = std::move(g.squeeze_bias);
      result[3] = std::move(g.excite_weight);
      result[4] = std::move(g.excite_bias);
    }
    call.put_parameter_gradients(result,
                                 [&] { return product.defined() ? product : activation.product(gate); });
    return result;
  }
};

class GatedConvFunction : public torch::autograd::Function<GatedConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& gate,
                            const at::Tensor& conv_weight, const OptionalTensor& conv_bias,
                            const Call* call) {
    ctx->save_for_backward({y, gate, conv_weight});
    call->save(ctx, conv_bias.has_value());
    return convolution_detail::forward(
        GatedActivation(y, call->activation, call->activation_param).product(gate), conv_weight, conv_bias,
        call->convolution, call->precision);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward(kGatedName, "a separate activation, product and convolution");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &y = saved[0], &gate = saved[1];
    const SavedCall call(ctx, std::move(gradients[0]), y, saved[2], 2);
    GatedActivation activation = call.activation();
    variable_list result(5);
    if (ctx->needs_input_grad(0)) result[0] = activation.backward(call.product_gradient(), gate);
    call.put_parameter_gradients(result, [&] { return activation.product(gate); });
    return result;
  }
};

void check_vector(const char* name, const at::Tensor& t, int64_t size) {
  TORCH_CHECK(t.defined() && t.dim() == 1 && t.size(0) == size, "[", kName, "] ", name,
              " needs one value per output, ", size, ", got ",
              t.defined() ? c10::str("shape ", t.sizes()) : std::string("none"));
}

void check_matrix(const char* name, const at::Tensor& t, int64_t rows, int64_t columns) {
  const bool fits = t.defined() && t.dim() >= 2 && (rows < 0 || t.size(0) == rows) && t.size(1) == columns &&
                    t.numel() == t.size(0) * columns;
  TORCH_CHECK(fits, "[", kName, "] ", name, " must be (", rows < 0 ? "R" : std::to_string(rows), ", ",
              columns, ") or the same with two more dimensions of 1, got ",
              t.defined() ? c10::str("shape ", t.sizes()) : std::string("none"));
}

void check_y(const char* op, const at::Tensor& y) {
  TORCH_CHECK(y.defined() && y.dim() == 4, "[", op, "] y must be (N, C, H, W), got ",
              y.defined() ? c10::str("shape ", y.sizes()) : std::string("none"));
  const auto type = y.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16, "[",
              op, "] y must be float32, float64, float16 or bfloat16, got ", type);
  TORCH_CHECK(y.size(2) * y.size(3) > 0, "[", op, "] y needs at least one pixel, got shape ", y.sizes());
}

void check_gate(const at::Tensor& y, const at::Tensor& gate) {
  const auto type = accumulate_type(y.scalar_type());
  TORCH_CHECK(gate.defined() && gate.dim() == 2 && gate.size(0) == y.size(0) && gate.size(1) == y.size(1) &&
                  gate.scalar_type() == type && gate.device() == y.device(),
              "[", kGatedName, "] gate needs one ", type, " per image and channel on ", y.device(), ", (",
              y.size(0), ", ", y.size(1), "), got ",
              gate.defined()
                  ? c10::str("shape ", gate.sizes(), " of ", gate.scalar_type(), " on ", gate.device())
                  : std::string("none"));
  TORCH_CHECK(!gate.requires_grad(), "[", kGatedName, "] gate must not require a gradient; detach it");
}

void check(const at::Tensor& y, const SqueezeExcitation& e) {
  check_y(kName, y);
  check_matrix("squeeze_weight", e.squeeze_weight, -1, y.size(1));
  check_vector("squeeze_bias", e.squeeze_bias, e.squeeze_weight.size(0));
  check_matrix("excite_weight", e.excite_weight, y.size(1), e.squeeze_weight.size(0));
  check_vector("excite_bias", e.excite_bias, y.size(1));
}

}  // namespace
}  // namespace palimpsest::ops::squeeze_excite_conv_detail

namespace palimpsest::ops {

at::Tensor squeeze_excite_conv(const at::Tensor& y, const SqueezeExcitation& excitation,
                               const at::Tensor& conv_weight, const std::optional<at::Tensor>& conv_bias,
                               const ConvolutionOptions& convolution, Activation activation,
                               double activation_param) {
  using namespace squeeze_excite_conv_detail;
  check(y, excitation);
  convolution_detail::check(kName, y, conv_weight, conv_bias, convolution);
  refuse_tangents(kName, y, excitation.squeeze_weight, excitation.squeeze_bias, excitation.excite_weight,
                  excitation.excite_bias, conv_weight, conv_bias);
  const Call call{convolution, autocast_precision(y), activation, activation_param};
  // The precision of the call decides: libtorch's autocast would round the gates to 16 bits.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return SqueezeExciteConvFunction::apply(y, excitation.squeeze_weight, excitation.squeeze_bias,
                                          excitation.excite_weight, excitation.excite_bias, conv_weight,
                                          conv_bias, &excitation, &call);
}

at::Tensor gated_conv(const at::Tensor& y, const at::Tensor& gate, const at::Tensor& conv_weight,
                      const std::optional<at::Tensor>& conv_bias, const ConvolutionOptions& convolution,
                      Activation activation, double activation_param) {
  using namespace squeeze_excite_conv_detail;
  check_y(kGatedName, y);
  check_gate(y, gate);
  convolution_detail::check(kGatedName, y, conv_weight, conv_bias, convolution);
  refuse_tangents(kGatedName, y, gate, conv_weight, conv_bias);
  const Call call{convolution, autocast_precision(y), activation, activation_param};
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return GatedConvFunction::apply(y, gate.resolve_neg().contiguous(), conv_weight, conv_bias, &call);
}

}  // namespace palimpsest::ops
