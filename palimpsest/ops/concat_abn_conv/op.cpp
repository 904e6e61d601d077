#include "palimpsest/ops/concat_abn_conv.h"

#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/convolution/functional.h"

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool2d_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace palimpsest::ops::concat_abn_conv_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Returns whether the features lie one behind the other in one buffer (ops/feature_slots.h).
bool are_neighbours(at::TensorList features) {
  const at::Tensor& first = features[0];
  int64_t end = first.storage_offset();
  for (const auto& f : features) {
    if (!f.storage().is_alias_of(first.storage()) || f.scalar_type() != first.scalar_type() ||
        f.strides() != first.strides() || f.storage_offset() != end || f.is_neg())
      return false;
    end += f.size(1) * f.stride(1);
  }
  return true;
}

/// Returns the features, concatenated along dimension 1, contiguous.
at::Tensor concatenated(at::TensorList features) {
  refuse_tangents("concat_abn_conv", features);
  if (features.size() == 1) return features[0];
  if (!are_neighbours(features)) return at::cat(features, 1);
  const at::Tensor& first = features[0];
  auto sizes = first.sizes().vec();
  sizes[1] = 0;
  for (const auto& f : features) sizes[1] += f.size(1);
  const at::Tensor all =
      part_of_storage(first, first.scalar_type(), first.storage_offset(), sizes, first.strides());
  // This is one copy of long rows; cat would copy feature by feature.
  return contiguous_in(preferred_layout(first.sizes(), first.strides()), all);
}

at::Tensor pooled_features(const at::Tensor& z, bool pool) {
  return pool ? at::avg_pool2d(z, {2, 2}) : z;
}

struct FeaturesCall {
  const abn_detail::ForwardArguments* norm;  ///< null: no normalization
  const ConvolutionOptions& convolution;
  const std::optional<ProductPrecision>& precision;
  bool pool;
  abn_detail::Statistics statistics;
};

at::Tensor run_features(const at::Tensor& x, const at::Tensor& conv_weight, FeaturesCall& call) {
  refuse_tangents("concat_abn_conv", conv_weight);  // before the running statistics move
  at::Tensor z = x;
  if (call.norm) {
    abn_detail::ForwardResult result = forward(x, *call.norm);
    call.statistics = std::move(result.statistics);
    z = std::move(result.z);
  }
  return convolution_detail::forward(pooled_features(z, call.pool), conv_weight, std::nullopt,
                                     call.convolution, call.precision);
}

class ConcatAbnConvFunction : public torch::autograd::Function<ConcatAbnConvFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList features, const OptionalTensor& weight,
                            const OptionalTensor& bias, const at::Tensor& conv_weight, FeaturesCall* call) {
    const at::Tensor out = run_features(concatenated(features), conv_weight, *call);
    variable_list more{conv_weight};
    more.insert(more.end(), features.begin(), features.end());
    ctx->saved_data["normalized"] = call->norm != nullptr;
    ctx->saved_data["pool"] = call->pool;
    if (call->norm)
      save(ctx, at::Tensor(), *call->norm, call->statistics, more);
    else
      ctx->save_for_backward(std::move(more));
    convolution_detail::save_options(ctx, call->convolution);
    save_precision(ctx, call->precision);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward("concat_abn_conv", "separate layers");
    const at::Tensor dout = std::move(gradients[0]);
    const variable_list saved = ctx->get_saved_variables();
    const bool normalized = ctx->saved_data["normalized"].toBool(), pool = ctx->saved_data["pool"].toBool();
    const at::TensorList more = at::TensorList(saved).slice(normalized ? abn_detail::kSavedTensors : 0);
    const at::Tensor& conv_weight = more[0];
    const at::TensorList features = more.slice(1);
    const auto count = static_cast<int>(features.size());
    const auto wants = [&](int edge) { return ctx->needs_input_grad(static_cast<std::size_t>(edge)); };
    bool need_dx = false;
    for (int i = 0; i < count; ++i) need_dx = wants(i) || need_dx;

    const at::Tensor x = concatenated(features);
    variable_list of_norm;
    at::Tensor dx, z = x;
    bool need_weight = false;
    const auto convolve_back = [&](const at::Tensor& in, std::array<bool, 3> needed) {
      return convolution_detail::backward(dout, in, conv_weight, convolution_detail::saved_options(ctx),
                                          needed, saved_precision(ctx));
    };
    // The input gradient needs the shape and layout of the input, not its values.
    const auto gradient_of_z = [&] {
      const auto like = pool ? at::empty({x.size(0), x.size(1), x.size(2) / 2, x.size(3) / 2}, x.options(),
                                         x.suggest_memory_format())
                             : x;
      const at::Tensor dz = convolve_back(like, {true, false, false}).input.to(x.scalar_type());
      return pool ? at::avg_pool2d_backward(dz, x, {2, 2}, {2, 2}, {0, 0}, false, true, std::nullopt) : dz;
    };
    if (normalized) {
      abn_detail::BackwardArguments a = abn_detail::saved_arguments(ctx, saved);
      a.saved_values = x;
      const abn_detail::GradientSlots slots(ctx, a, count - 1);
      need_weight = wants(slots.next());
      a.need_dx = need_dx;
      a.need_z = need_weight;
      abn_detail::Gradients g;
      if (a.need_dx || a.need_sums) g = backward_stealing(gradient_of_z(), a);
      z = std::move(g.z);
      if (need_weight && !z.defined()) z = recompute_output(x, a.settings, a.mean, a.inv_std);
      dx = g.dx;
      of_norm = slots.in_order(std::move(g), {});
    } else {
      need_weight = wants(count);
      if (need_dx) dx = gradient_of_z();
      of_norm.resize(4);
    }
    variable_list result;
    int64_t at = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t channels = features[i].size(1);
      result.push_back(wants(i) ? (count == 1 ? dx : dx.narrow(1, at, channels)) : at::Tensor());
      at += channels;
    }
    result.insert(result.end(), {of_norm[1], of_norm[2]});
    result.push_back(need_weight ? convolve_back(pooled_features(z, pool), {false, true, false}).weight
                                 : at::Tensor());
    result.push_back(at::Tensor());
    return result;
  }
};

}  // namespace
}  // namespace palimpsest::ops::concat_abn_conv_detail

namespace palimpsest::ops {

at::Tensor concat_abn_conv(at::TensorList given, const std::optional<NormalizationTensors>& norm,
                           const at::Tensor& conv_weight, const ConvolutionOptions& convolution,
                           const AbnOptions& given_options, bool pool) {
  using namespace concat_abn_conv_detail;
  TORCH_CHECK(!given.empty(), "[concat_abn_conv] features must be at least one tensor, got none");
  TORCH_CHECK(conv_weight.defined() && conv_weight.dim() == 4,
              "[concat_abn_conv] the convolution's weight must have 4 dimensions, got ",
              conv_weight.defined() ? c10::str("shape ", conv_weight.sizes()) : "none");
  for (const auto& f : given)
    TORCH_CHECK(f.defined() && f.device() == given[0].device(),
                "[concat_abn_conv] features must be tensors on one device, got ", given[0].device(), " and ",
                f.defined() ? c10::str(f.device()) : "none");
  for (const auto& f : given)
    TORCH_CHECK(f.dim() == 4 && given[0].dim() == 4 && f.size(0) == given[0].size(0) &&
                    f.size(2) == given[0].size(2) && f.size(3) == given[0].size(3),
                "[concat_abn_conv] features must be (N, C, H, W) and differ in C alone, got shapes ",
                given[0].sizes(), " and ", f.sizes());
  TORCH_CHECK(!pool || (conv_weight.size(2) == 1 && conv_weight.size(3) == 1),
              "[concat_abn_conv] pooling goes before a 1x1 convolution, got a weight of shape ",
              conv_weight.sizes());
  TORCH_CHECK(!pool || (given[0].size(2) > 1 && given[0].size(3) > 1),
              "[concat_abn_conv] pooling needs 2 x 2 pixels, got shape ", given[0].sizes());
  variable_list features = given.vec();
  const auto precision = autocast_precision(features[0]);
  if (precision)
    for (auto& f : features) f = f.to(precision->storage);
  for (const auto& f : features)
    TORCH_CHECK(f.scalar_type() == features[0].scalar_type(),
                "[concat_abn_conv] features must have one dtype, got ", features[0].scalar_type(), " and ",
                f.scalar_type());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  AbnOptions options = given_options;
  options.saved = Saved::kInput;
  int64_t channels = 0;
  for (const auto& f : features) channels += f.size(1);
  auto sizes = features[0].sizes().vec();
  sizes[1] = channels;
  const at::Tensor stand_in =
      features.size() == 1 ? features[0] : features[0].detach().narrow(1, 0, 1).expand(sizes);
  convolution_detail::check("concat_abn_conv", stand_in, conv_weight, std::nullopt, convolution);
  const std::optional<at::Tensor> no_residual;
  const NormalizationTensors n = norm.value_or(NormalizationTensors{});
  const abn_detail::Inputs inputs{stand_in, n, no_residual};
  if (norm) check(inputs, options);
  bool recorded = requires_gradient(inputs) || conv_weight.requires_grad();
  for (const auto& f : features) recorded = recorded || f.requires_grad();
  recorded = recorded && c10::GradMode::is_enabled();
  const auto arguments = forward_arguments(inputs, options, recorded);
  FeaturesCall call{norm ? &arguments : nullptr, convolution, precision, pool, {}};
  return recorded
             ? ConcatAbnConvFunction::apply(at::TensorList(features), n.weight, n.bias, conv_weight, &call)
             : run_features(concatenated(features), conv_weight, call);
}

}  // namespace palimpsest::ops
