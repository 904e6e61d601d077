#include "palimpsest/ops/dense_block.h"

#include "palimpsest/kernels/dense_block.h"
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/common/tracing.h"
#include "palimpsest/ops/convolution/functional.h"
#include "palimpsest/ops/dense_block/layer.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <utility>

namespace palimpsest::ops::dense_block_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Calls visit on every tensor of a layer that may require a gradient. This order is the order of the
/// autograd Function's inputs and of the gradients that it returns.
template <class Layer, class Visit>
void for_parameters(Layer& layer, const Visit& visit) {
  visit(layer.norm1.weight);
  visit(layer.norm1.bias);
  visit(layer.conv1_weight);
  visit(layer.norm2.weight);
  visit(layer.norm2.bias);
  visit(layer.conv2_weight);
}

/// Calls visit in the same order on the members of LayerGradients or LayerWants.
template <class Gradients, class Visit>
void for_gradients(Gradients& gradients, const Visit& visit) {
  visit(gradients.weight1);
  visit(gradients.bias1);
  visit(gradients.conv1_weight);
  visit(gradients.weight2);
  visit(gradients.bias2);
  visit(gradients.conv2_weight);
}

/// Calls visit on every tensor that a layer saves: a Writer puts them into a list, a Reader takes them out.
template <class Layer, class Visit>
void for_saved_tensors(Layer& layer, SavedLayer& saved, const Visit& visit) {
  for_parameters(layer, visit);
  for (auto* norm : {&layer.norm1, &layer.norm2}) {
    visit(norm->running_mean);
    visit(norm->running_var);
  }
  for (auto* norm : {&saved.bottleneck, &saved.features}) {
    visit(norm->saved_values);
    auto& statistics = norm->statistics;
    for (auto* t : {&statistics.mean, &statistics.inv_std, &statistics.channel_values,
                    &statistics.channel_index, &statistics.branch, &statistics.count})
      visit(*t);
  }
  visit(saved.dropout);
}

/// The visitor that appends tensors to a list.
struct Writer {
  variable_list& list;
  void operator()(const at::Tensor& t) const { list.push_back(t); }
  void operator()(const OptionalTensor& t) const { list.push_back(t.value_or(at::Tensor())); }
};

/// The visitor that takes tensors out of a list.
struct Reader {
  const variable_list& list;
  std::size_t& at;
  void operator()(at::Tensor& t) const { t = list[at++]; }
  void operator()(OptionalTensor& t) const {
    const at::Tensor& next = list[at++];
    t = next.defined() ? OptionalTensor(next) : std::nullopt;
  }
};

int64_t growth_of(const std::vector<DenseLayer>& layers) {
  int64_t channels = 0;
  for (const auto& layer : layers) channels += layer.conv2_weight.size(0);
  return channels;
}

bool takes_statistics(const std::vector<DenseLayer>& layers, const DenseBlockOptions& options) {
  bool takes = false;
  for (const auto& layer : layers) takes = takes || (options.pre_activation && layer.options1.training);
  return takes;
}

/// Returns whether a normalization of the block shares its statistics with other ranks.
bool any_shares_statistics(const std::vector<DenseLayer>& layers) {
  for (const auto& layer : layers)
    if (abn_detail::shares_statistics(layer.options1) || abn_detail::shares_statistics(layer.options2))
      return true;
  return false;
}

/// The parts of a block that backward needs and that are no tensors.
struct BlockPlan final : torch::CustomClassHolder {
  std::vector<DenseLayer> layers;  // without their tensors, which save_for_backward holds
  std::vector<SavedLayer> saved;   // likewise
  DenseBlockOptions options;
  Layout layout = Layout::kNCHW;
  std::optional<ProductPrecision> precision;
  int64_t in = 0;
  std::string group;
};

struct BlockResult {
  Buffer buffer;
  std::vector<SavedLayer> saved;
};

BlockResult run_block(const at::Tensor& x, const std::vector<DenseLayer>& layers,
                      const DenseBlockOptions& options, const std::optional<ProductPrecision>& precision,
                      bool for_backward) {
  refuse_tangents("dense_block", x);
  for (const auto& layer : layers)
    for_parameters(layer, [](const auto& t) { refuse_tangents("dense_block", t); });
  BlockResult result;
  Buffer& buffer = result.buffer;
  buffer.layout = preferred_layout(x.sizes(), x.strides());
  auto sizes = x.sizes().vec();
  sizes[1] += growth_of(layers);
  buffer.values = at::empty_strided(sizes, contiguous_strides(sizes, buffer.layout), x.options());
  if (takes_statistics(layers, options)) {
    buffer.mean = at::empty({sizes[1]}, x.options().dtype(at::kDouble));
    buffer.var = at::empty_like(buffer.mean);
    if (any_shares_statistics(layers)) buffer.group = layers.front().options1.group;
  }
  put_features(buffer, 0, contiguous_in(buffer.layout, x));
  int64_t channels = x.size(1);
  for (const auto& layer : layers) {
    const LayerPass pass(layer, options, channels, precision);
    SavedLayer saved = pass.forward(buffer, for_backward);
    if (for_backward) result.saved.push_back(std::move(saved));
    channels += pass.growth();
  }
  return result;
}

/// Returns the gradient buffer of the block: dout itself if no other owner sees it, else a copy.
at::Tensor gradient_buffer(at::Tensor dout, const Buffer& buffer) {
  const at::Tensor& values = buffer.values;
  const auto type = accumulate_type(values.scalar_type());
  if (dout.scalar_type() == type && can_steal_gradient(dout, values)) return dout;
  at::Tensor gradient = at::empty_strided(values.sizes(), contiguous_strides(values.sizes(), buffer.layout),
                                          values.options().dtype(type));
  return gradient.copy_(dout);
}

class DenseBlockFunction : public torch::autograd::Function<DenseBlockFunction> {
 public:
  /// `parameters`: the parameters of all layers that are present, in the order of for_parameters.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList /*parameters*/,
                            const std::vector<DenseLayer>* layers, const DenseBlockOptions* options,
                            const std::optional<ProductPrecision>* precision) {
    BlockResult result = run_block(x, *layers, *options, *precision, true);
    auto plan = c10::make_intrusive<BlockPlan>();
    plan->options = *options;
    plan->precision = *precision;
    plan->layout = result.buffer.layout;
    plan->in = x.size(1);
    plan->group = result.buffer.group;
    // Detached, as in abn_detail::saved_tensor().
    variable_list saved{result.buffer.values.detach(), result.buffer.mean, result.buffer.var,
                        result.buffer.count};
    for (std::size_t i = 0; i < layers->size(); ++i) {
      DenseLayer layer = (*layers)[i];
      // Backward reads running statistics only if they are frozen.
      if (layer.options1.training) layer.norm1.running_mean = layer.norm1.running_var = std::nullopt;
      if (layer.options2.training) layer.norm2.running_mean = layer.norm2.running_var = std::nullopt;
      for_saved_tensors(layer, result.saved[i], Writer{saved});
      plan->layers.push_back({{}, layer.options1, {}, {}, layer.options2, {}, layer.conv2});
      SavedLayer kinds;
      for (auto norm : {&SavedLayer::bottleneck, &SavedLayer::features}) {
        (kinds.*norm).saved = (result.saved[i].*norm).saved;
        (kinds.*norm).activation = (result.saved[i].*norm).activation;
      }
      plan->saved.push_back(std::move(kinds));
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return result.buffer.values;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward("dense_block", "dense strategy 'shared_gradient' with strategy 'standard'");
    at::Tensor dout = std::move(gradients[0]);
    refuse_tangents("dense_block", dout);
    const auto list = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["plan"].toCapsule();
    const BlockPlan& plan = *static_cast<const BlockPlan*>(capsule.get());

    std::size_t at = 0;
    const Reader read{list, at};
    Buffer buffer;
    buffer.layout = plan.layout;
    buffer.group = plan.group;
    for (at::Tensor* t : {&buffer.values, &buffer.mean, &buffer.var, &buffer.count}) read(*t);
    buffer.values = contiguous_in(plan.layout, buffer.values);
    std::vector<DenseLayer> layers = plan.layers;
    std::vector<SavedLayer> saved = plan.saved;
    for (std::size_t i = 0; i < layers.size(); ++i) for_saved_tensors(layers[i], saved[i], read);
    const std::vector<LayerWants> wanted = wanted_gradients(ctx, layers);
    const bool need_dx = ctx->needs_input_grad(0);

    const at::Tensor gradient = gradient_buffer(std::move(dout), buffer);
    Corrections corrections(buffer);
    std::vector<LayerGradients> result(layers.size());
    int64_t channels = buffer.values.size(1);
    for (std::size_t i = layers.size(); i-- > 0;) {
      channels -= layers[i].conv2_weight.size(0);
      const LayerPass pass(layers[i], plan.options, channels, plan.precision);
      result[i] = pass.backward(buffer, saved[i], gradient, corrections, need_dx || i > 0, wanted[i]);
      saved[i] = {};
    }
    variable_list flat(1);
    if (need_dx) flat[0] = feature_gradient(buffer, 0, plan.in, gradient, corrections);
    for (std::size_t i = 0; i < layers.size(); ++i) append_present(layers[i], result[i], flat);
    flat.insert(flat.end(), {at::Tensor(), at::Tensor(), at::Tensor()});
    return flat;
  }

 private:
  /// libtorch numbers only the parameters that are present.
  static std::vector<LayerWants> wanted_gradients(AutogradContext* ctx,
                                                  const std::vector<DenseLayer>& layers) {
    std::vector<LayerWants> wanted(layers.size());
    int slot = 1;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      std::vector<bool> wants;
      for_parameters(layers[i],
                     [&](const OptionalTensor& t) { wants.push_back(t && ctx->needs_input_grad(slot++)); });
      auto next = wants.begin();
      for_gradients(wanted[i], [&](bool& want) { want = *next++; });
    }
    return wanted;
  }

  static void append_present(const DenseLayer& layer, const LayerGradients& gradients, variable_list& flat) {
    std::vector<bool> present;
    for_parameters(layer, [&](const OptionalTensor& t) { present.push_back(t.has_value()); });
    auto next = present.begin();
    for_gradients(gradients, [&](const at::Tensor& gradient) {
      if (*next++) flat.push_back(gradient);
    });
  }
};

/// `rounded`: autocast rounds the weights to the dtype of x, so they may have another dtype.
void check_dense_layer(const at::Tensor& x, int64_t channels, const DenseLayer& layer,
                       const DenseBlockOptions& options, bool rounded) {
  const auto vectors = [&](const char* name, const NormalizationTensors& norm, int64_t wanted) {
    for (const auto* t : {&norm.weight, &norm.bias, &norm.running_mean, &norm.running_var})
      TORCH_CHECK(!*t || (*t)->numel() == wanted, "[dense_block] ", name, " needs one value for each of its ",
                  wanted, " channels, got shape ", (*t ? (*t)->sizes() : at::IntArrayRef()));
  };
  TORCH_CHECK(layer.conv1_weight.defined() && layer.conv2_weight.defined(),
              "[dense_block] every layer needs the weights of conv1 and conv2, got none");
  convolution_detail::check_geometry("dense_block", layer.conv2);
  TORCH_CHECK(layer.conv1_weight.dim() == 4 && layer.conv1_weight.size(1) == channels &&
                  layer.conv1_weight.size(2) == 1 && layer.conv1_weight.size(3) == 1 &&
                  layer.conv1_weight.size(0) > 0,
              "[dense_block] conv1 must be 1x1 and read all ", channels,
              " features before it, got a weight of shape ", layer.conv1_weight.sizes(),
              " behind an x of shape ", x.sizes());
  TORCH_CHECK(layer.conv2_weight.dim() == 4 && layer.conv2_weight.size(1) == layer.conv1_weight.size(0) &&
                  layer.conv2_weight.size(0) > 0,
              "[dense_block] conv2 must read the ", layer.conv1_weight.size(0),
              " channels of conv1 in one group, got a weight of shape ", layer.conv2_weight.sizes());
  TORCH_CHECK(layer.conv2.groups == 1, "[dense_block] conv2 must have one group, got ", layer.conv2.groups);
  for (const std::size_t d : {0, 1}) {
    const auto& c = layer.conv2;
    TORCH_CHECK(
        c.stride.size() == 2 && c.padding.size() == 2 && c.dilation.size() == 2 && c.stride[d] == 1 &&
            2 * c.padding[d] == c.dilation[d] * (layer.conv2_weight.size(static_cast<int64_t>(d) + 2) - 1),
        "[dense_block] conv2 must keep the size of the image (stride 1, padding dilation * (kernel - "
        "1) / 2), got stride ",
        c.stride, ", padding ", c.padding, ", dilation ", c.dilation, " and a weight of shape ",
        layer.conv2_weight.sizes());
  }
  vectors("norm1", layer.norm1, options.pre_activation ? channels : layer.conv1_weight.size(0));
  vectors("norm2", layer.norm2,
          options.pre_activation ? layer.conv2_weight.size(1) : layer.conv2_weight.size(0));
  const Activation first = layer.options1.activation;
  TORCH_CHECK(!options.pre_activation || kernels::has_dense_product(first),
              "[dense_block] the activation before conv1 must be 'relu', 'leaky_relu' or 'identity', got '",
              activation_name(first), "'; take another dense strategy, such as 'shared'");
  for (const auto* t : {&layer.conv1_weight, &layer.conv2_weight})
    TORCH_CHECK((t->scalar_type() == x.scalar_type() || (rounded && t->is_floating_point())) &&
                    t->device() == x.device(),
                "[dense_block] the convolutions' weights must have the dtype and device of x, ",
                x.scalar_type(), " on ", x.device(), ", got ", t->scalar_type(), " on ", t->device());
}

void check_block(const at::Tensor& x, const std::vector<DenseLayer>& layers, const DenseBlockOptions& options,
                 bool rounded) {
  TORCH_CHECK(x.defined() && x.dim() == 4 && std::min({x.size(1), x.size(2), x.size(3)}) > 0,
              "[dense_block] x must be (N, C, H, W) with at least one channel and one pixel, got ",
              x.defined() ? c10::str("shape ", x.sizes()) : "none");
  TORCH_CHECK(x.device().is_cpu() || x.device().is_cuda(),
              "[dense_block] there are kernels for CPU and CUDA, got a tensor on ", x.device(),
              "; take dense strategy 'shared_gradient' with strategy 'standard' there");
  TORCH_CHECK(!is_traced(x),
              "[dense_block] runs in eager mode only, got a tensor of a traced graph; take dense "
              "strategy 'shared_gradient' with strategy 'standard' there");
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "[dense_block] dropout must be in [0, 1), got ",
              options.dropout);
  int64_t channels = x.size(1);
  for (const auto& layer : layers) {
    check_dense_layer(x, channels, layer, options, rounded);
    const AbnOptions& first = layers.front().options1;
    for (const AbnOptions* o : {&layer.options1, &layer.options2})
      TORCH_CHECK(o->group == first.group, "[dense_block] all normalizations must have one group, got '",
                  first.group, "' and '", o->group, "'");
    TORCH_CHECK(layer.options1.training == first.training || first.group.empty(),
                "[dense_block] with a group all layers must train, or none, got both");
    channels += layer.conv2_weight.size(0);
  }
  // The requirements of the two normalizations are those of any layer; the check reads only shapes.
  for (const auto& layer : layers) {
    const auto of = [&](const NormalizationTensors& n, AbnOptions o, int64_t count, bool only_reads) {
      auto sizes = x.sizes().vec();
      sizes[1] = count;
      if (only_reads) o.saved = Saved::kInput;
      const at::Tensor stand_in = at::empty({1}, x.options()).expand(sizes);
      const OptionalTensor no_residual;
      abn_detail::check({stand_in, n, no_residual}, o);
    };
    const bool pre = options.pre_activation;
    of(layer.norm1, layer.options1, pre ? layer.conv1_weight.size(1) : layer.conv1_weight.size(0), pre);
    of(layer.norm2, layer.options2, pre ? layer.conv2_weight.size(1) : layer.conv2_weight.size(0), false);
  }
}

/// The block of an empty batch, by libtorch's layers: an empty result, gradients of zero, no statistics move.
at::Tensor run_empty_batch(at::Tensor x, const std::vector<DenseLayer>& layers,
                           const DenseBlockOptions& options) {
  const auto normalized = [](const at::Tensor& t, const NormalizationTensors& n, const AbnOptions& o) {
    return at::batch_norm(t, n.weight, n.bias, n.running_mean, n.running_var, o.training, o.momentum, o.eps,
                          false);
  };
  for (const auto& layer : layers) {
    const bool pre = options.pre_activation;
    const auto convolved = [&](const at::Tensor& t, const at::Tensor& weight, at::IntArrayRef padding,
                               at::IntArrayRef dilation) {
      return at::conv2d(t, weight.to(t.scalar_type()), {}, at::IntArrayRef{1}, padding, dilation);
    };
    at::Tensor f = pre ? normalized(x, layer.norm1, layer.options1) : x;
    f = convolved(f, layer.conv1_weight, {0, 0}, {1, 1});
    f = pre ? normalized(f, layer.norm2, layer.options2) : normalized(f, layer.norm1, layer.options1);
    f = convolved(f, layer.conv2_weight, layer.conv2.padding, layer.conv2.dilation);
    if (!pre) f = normalized(f, layer.norm2, layer.options2);
    x = at::cat({x, f}, 1);
  }
  return x;
}

bool any_recorded(const at::Tensor& x, const std::vector<DenseLayer>& layers) {
  if (!c10::GradMode::is_enabled()) return false;
  bool any = x.requires_grad();
  for (const auto& layer : layers)
    for_parameters(layer, [&](const OptionalTensor& t) { any = any || (t && t->requires_grad()); });
  return any;
}

}  // namespace
}  // namespace palimpsest::ops::dense_block_detail

namespace palimpsest::ops {

at::Tensor dense_block(const at::Tensor& given, const std::vector<DenseLayer>& layers,
                       const DenseBlockOptions& options) {
  using namespace dense_block_detail;
  at::Tensor x = given;
  const auto precision = x.defined() ? autocast_precision(x) : std::nullopt;
  if (precision) x = x.to(precision->storage);
  check_block(x, layers, options, precision.has_value());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (x.numel() == 0 && !any_shares_statistics(layers)) return run_empty_batch(x, layers, options);
  if (!any_recorded(x, layers)) return run_block(x, layers, options, precision, false).buffer.values;
  torch::autograd::variable_list parameters;
  for (const auto& layer : layers)
    for_parameters(layer, [&](const OptionalTensor& t) {
      if (t) parameters.push_back(*t);
    });
  return DenseBlockFunction::apply(x, at::TensorList(parameters), &layers, &options, &precision);
}

}  // namespace palimpsest::ops
