#include "palimpsest/ops/dense_block.h"

#include "palimpsest/kernels/dense_block.h"
#include "palimpsest/ops/abn/autograd.h"
#include "palimpsest/ops/abn/check.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/dense_block/layer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

namespace palimpsest::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const OptionalTensor kNoResidual;

/// Calls visit on every tensor of a layer that a gradient may be asked of, in one order for all uses;
/// `Layer` is a DenseLayer.
template <class Visit>
void for_parameters(const DenseLayer& l, const Visit& visit) {
  visit(l.norm1.weight);
  visit(l.norm1.bias);
  visit(OptionalTensor(l.kernel1));
  visit(l.norm2.weight);
  visit(l.norm2.bias);
  visit(OptionalTensor(l.kernel2));
}

int64_t growth_of(const std::vector<DenseLayer>& layers) {
  int64_t channels = 0;
  for (const auto& l : layers) channels += l.kernel2.size(0);
  return channels;
}

/// A block on its way through autograd, without tensors that autograd should keep.
struct BlockPlan final : torch::CustomClassHolder {
  std::vector<DenseLayer> layers;  // parameters undefined: they are among what is saved
  struct Keeps {
    Saved bottleneck, features;
  };
  std::vector<Keeps> keeps;
  DenseBlockOptions options;
  Layout layout = Layout::kNCHW;
  std::optional<ProductPrecision> precision;
  int64_t in = 0;
  bool statistics = false;
};

bool takes_statistics(const std::vector<DenseLayer>& layers, const DenseBlockOptions& options) {
  bool takes = false;
  for (const auto& l : layers) takes = takes || (options.pre_activation && l.options1.training);
  return takes;
}

struct BlockResult {
  DenseBuffer buffer;
  std::vector<DenseLayerKept> kept;
};

BlockResult run_block(const at::Tensor& x, const std::vector<DenseLayer>& layers,
                      const DenseBlockOptions& options, const std::optional<ProductPrecision>& precision,
                      bool for_backward) {
  BlockResult r;
  r.buffer.layout = preferred_layout(x.sizes(), x.strides());
  auto sizes = x.sizes().vec();
  sizes[1] += growth_of(layers);
  r.buffer.values = at::empty_strided(sizes, dense_strides(sizes, r.buffer.layout), x.options());
  if (takes_statistics(layers, options)) {
    r.buffer.mean = at::empty({sizes[1]}, x.options().dtype(at::kDouble));
    r.buffer.var = at::empty_like(r.buffer.mean);
  }
  put_features(r.buffer, 0, dense_in(r.buffer.layout, x));
  int64_t channels = x.size(1);
  for (const auto& layer : layers) {
    const DenseLayerPass pass(layer, options, channels, precision);
    DenseLayerKept kept = pass.forward(r.buffer, for_backward);
    if (for_backward) r.kept.push_back(std::move(kept));
    channels += pass.growth();
  }
  return r;
}

void append_norm(variable_list& list, const DenseNormKept& k) {
  list.insert(list.end(), {k.kept, k.side, k.mean, k.inv_std, k.branch});
}

/// Hands out a list's tensors one after the other.
class SavedReader {
 public:
  explicit SavedReader(const variable_list& list) : list_(list) {}
  at::Tensor next() { return list_[at_++]; }
  OptionalTensor next_optional() {
    at::Tensor t = next();
    return t.defined() ? OptionalTensor(std::move(t)) : std::nullopt;
  }
  DenseNormKept next_norm(Saved keep) {
    DenseNormKept k;
    k.keep = keep;
    for (at::Tensor* t : {&k.kept, &k.side, &k.mean, &k.inv_std, &k.branch}) *t = next();
    return k;
  }

 private:
  const variable_list& list_;
  std::size_t at_ = 0;
};

class DenseBlockFunction : public torch::autograd::Function<DenseBlockFunction> {
 public:
  /// `parameters`: those of the layers that exist, in the order of for_parameters.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList /*parameters*/,
                            const std::vector<DenseLayer>* layers, const DenseBlockOptions* options,
                            const std::optional<ProductPrecision>* precision) {
    BlockResult r = run_block(x, *layers, *options, *precision, true);
    auto plan = c10::make_intrusive<BlockPlan>();
    plan->options = *options;
    plan->precision = *precision;
    plan->layout = r.buffer.layout;
    plan->in = x.size(1);
    plan->statistics = r.buffer.mean.defined();
    variable_list saved{r.buffer.values, r.buffer.mean, r.buffer.var};
    for (std::size_t i = 0; i < layers->size(); ++i) {
      const DenseLayer& l = (*layers)[i];
      for_parameters(l, [&](const OptionalTensor& t) { saved.push_back(t.value_or(at::Tensor())); });
      // Only frozen statistics are read again.
      for (const auto* norm : {&l.norm1, &l.norm2}) {
        const bool frozen = !(norm == &l.norm1 ? l.options1 : l.options2).training;
        saved.push_back(frozen ? norm->running_mean.value_or(at::Tensor()) : at::Tensor());
        saved.push_back(frozen ? norm->running_var.value_or(at::Tensor()) : at::Tensor());
      }
      append_norm(saved, r.kept[i].bottleneck);
      append_norm(saved, r.kept[i].features);
      saved.push_back(r.kept[i].dropout);
      DenseLayer options_only;
      options_only.options1 = l.options1;
      options_only.options2 = l.options2;
      options_only.convolution2 = l.convolution2;
      plan->layers.push_back(std::move(options_only));
      plan->keeps.push_back({r.kept[i].bottleneck.keep, r.kept[i].features.keep});
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["plan"] = c10::IValue::make_capsule(std::move(plan));
    return r.buffer.values;
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_second_derivative("dense_block");
    at::Tensor dout = std::move(gradients[0]);
    const auto saved = ctx->get_saved_variables();
    const auto capsule = ctx->saved_data["plan"].toCapsule();
    const BlockPlan& plan = *static_cast<const BlockPlan*>(capsule.get());

    SavedReader read(saved);
    DenseBuffer buffer{dense_in(plan.layout, read.next()), read.next(), read.next(), plan.layout};
    std::vector<DenseLayer> layers = plan.layers;
    std::vector<DenseLayerKept> kept(layers.size());
    std::vector<DenseLayerGradients> wanted(layers.size());
    int edge = 1;
    const auto wants = [&](const at::Tensor& t) {
      return t.defined() && ctx->needs_input_grad(edge++) ? t : at::Tensor();
    };
    const bool need_dx = ctx->needs_input_grad(0);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      DenseLayer& l = layers[i];
      DenseLayerGradients& w = wanted[i];
      l.norm1.weight = read.next_optional();
      l.norm1.bias = read.next_optional();
      l.kernel1 = read.next();
      l.norm2.weight = read.next_optional();
      l.norm2.bias = read.next_optional();
      l.kernel2 = read.next();
      w.weight1 = wants(l.norm1.weight.value_or(at::Tensor()));
      w.bias1 = wants(l.norm1.bias.value_or(at::Tensor()));
      w.kernel1 = wants(l.kernel1);
      w.weight2 = wants(l.norm2.weight.value_or(at::Tensor()));
      w.bias2 = wants(l.norm2.bias.value_or(at::Tensor()));
      w.kernel2 = wants(l.kernel2);
      l.norm1.running_mean = read.next_optional();
      l.norm1.running_var = read.next_optional();
      l.norm2.running_mean = read.next_optional();
      l.norm2.running_var = read.next_optional();
      kept[i].bottleneck = read.next_norm(plan.keeps[i].bottleneck);
      kept[i].features = read.next_norm(plan.keeps[i].features);
      kept[i].dropout = read.next();
    }

    // The buffer of gradients: dout itself where nobody else sees it.
    const auto type = accumulate_type(buffer.values.scalar_type());
    at::Tensor gradient;
    if (dout.scalar_type() == type && ours_to_overwrite(dout, buffer.values)) {
      gradient = std::move(dout);
    } else {
      gradient = at::empty_strided(buffer.values.sizes(), dense_strides(buffer.values.sizes(), plan.layout),
                                   buffer.values.options().dtype(type));
      gradient.copy_(dout);
      dout = at::Tensor();
    }
    DenseCorrections corrections(buffer);
    std::vector<DenseLayerGradients> result(layers.size());
    int64_t channels = buffer.values.size(1);
    for (std::size_t i = layers.size(); i-- > 0;) {
      channels -= layers[i].kernel2.size(0);
      const DenseLayerPass pass(layers[i], plan.options, channels, plan.precision);
      result[i] = pass.backward(buffer, kept[i], gradient, corrections, need_dx || i > 0, wanted[i]);
      kept[i] = {};
    }
    variable_list flat(1);
    if (need_dx)
      flat[0] = dense_device_kernels(buffer.values.device().type())
                    .feature_gradient(buffer, 0, plan.in, gradient, corrections);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const DenseLayerGradients& g = result[i];
      const at::Tensor* const in_order[] = {&g.weight1, &g.bias1, &g.kernel1,
                                            &g.weight2, &g.bias2, &g.kernel2};
      int which = 0;
      for_parameters(layers[i], [&](const OptionalTensor& t) {
        if (t) flat.push_back(*in_order[which]);
        ++which;
      });
    }
    flat.insert(flat.end(), {at::Tensor(), at::Tensor(), at::Tensor()});
    return flat;
  }
};

/// `rounded`: to x's type, by autocast.
void check_dense_layer(const at::Tensor& x, int64_t channels, const DenseLayer& l,
                       const DenseBlockOptions& options, bool rounded) {
  const auto vectors = [&](const char* name, const NormalizationTensors& norm, int64_t wanted) {
    for (const auto* t : {&norm.weight, &norm.bias, &norm.running_mean, &norm.running_var})
      TORCH_CHECK(!*t || (*t)->numel() == wanted, "[dense_block] ", name, " needs one value for each of its ",
                  wanted, " channels, got shape ", (*t ? (*t)->sizes() : at::IntArrayRef()));
  };
  TORCH_CHECK(l.kernel1.dim() == 4 && l.kernel1.size(1) == channels && l.kernel1.size(2) == 1 &&
                  l.kernel1.size(3) == 1 && l.kernel1.size(0) > 0,
              "[dense_block] conv1 must be 1x1 and read all ", channels,
              " features before it, got a kernel of shape ", l.kernel1.sizes());
  TORCH_CHECK(l.kernel2.dim() == 4 && l.kernel2.size(1) == l.kernel1.size(0) && l.kernel2.size(0) > 0,
              "[dense_block] conv2 must read the ", l.kernel1.size(0),
              " channels of conv1 in one group, got a kernel of shape ", l.kernel2.sizes());
  TORCH_CHECK(l.convolution2.groups == 1, "[dense_block] conv2 must have one group, got ",
              l.convolution2.groups);
  for (const std::size_t d : {0, 1}) {
    const auto& c = l.convolution2;
    TORCH_CHECK(c.stride.size() == 2 && c.padding.size() == 2 && c.dilation.size() == 2 && c.stride[d] == 1 &&
                    2 * c.padding[d] == c.dilation[d] * (l.kernel2.size(static_cast<int64_t>(d) + 2) - 1),
                "[dense_block] conv2 must keep the size of the image (stride 1, padding dilation * (kernel - "
                "1) / 2), got stride ",
                c.stride, ", padding ", c.padding, ", dilation ", c.dilation, " and a kernel of shape ",
                l.kernel2.sizes());
  }
  vectors("norm1", l.norm1, options.pre_activation ? channels : l.kernel1.size(0));
  vectors("norm2", l.norm2, options.pre_activation ? l.kernel2.size(1) : l.kernel2.size(0));
  const Activation first = l.options1.activation;
  TORCH_CHECK(!options.pre_activation || kernels::has_dense_product(first),
              "[dense_block] the activation before conv1 must be 'relu', 'leaky_relu' or 'identity', got '",
              activation_name(first), "'; take another form of the block for it");
  for (const auto* t : {&l.kernel1, &l.kernel2})
    TORCH_CHECK((t->scalar_type() == x.scalar_type() || (rounded && t->is_floating_point())) &&
                    t->device() == x.device(),
                "[dense_block] kernels must have x's type and device, ", x.scalar_type(), " on ", x.device(),
                ", got ", t->scalar_type(), " on ", t->device());
}

void check_block(const at::Tensor& x, const std::vector<DenseLayer>& layers, const DenseBlockOptions& options,
                 bool rounded) {
  TORCH_CHECK(x.defined() && x.dim() == 4 && x.numel() > 0,
              "[dense_block] x must be (N, C, H, W) with at least one value, got ",
              x.defined() ? c10::str("shape ", x.sizes()) : "none");
  TORCH_CHECK(x.device().is_cpu() || x.device().is_cuda(),
              "[dense_block] there are kernels for CPU and CUDA, got a tensor on ", x.device(),
              "; take the form 'shared' or 'checkpoint' of the block there");
  TORCH_CHECK(options.dropout >= 0 && options.dropout < 1, "[dense_block] dropout must be in [0, 1), got ",
              options.dropout);
  int64_t channels = x.size(1);
  for (const auto& l : layers) {
    check_dense_layer(x, channels, l, options, rounded);
    channels += l.kernel2.size(0);
  }
  // What the two normalizations ask of their values, as for any layer; shapes are all that is read.
  for (const auto& l : layers) {
    const auto of = [&](const NormalizationTensors& n, AbnOptions o, int64_t count, bool only_reads) {
      auto sizes = x.sizes().vec();
      sizes[1] = count;
      if (only_reads) o.keep = Saved::kInput;
      const at::Tensor stand_in = at::empty({1}, x.options()).expand(sizes);
      check_abn({stand_in, n.weight, n.bias, n.running_mean, n.running_var, kNoResidual}, o);
    };
    const bool pre = options.pre_activation;
    of(l.norm1, l.options1, pre ? l.kernel1.size(1) : l.kernel1.size(0), pre);
    of(l.norm2, l.options2, pre ? l.kernel2.size(1) : l.kernel2.size(0), false);
  }
}

bool any_recorded(const at::Tensor& x, const std::vector<DenseLayer>& layers) {
  if (!c10::GradMode::is_enabled()) return false;
  bool any = x.requires_grad();
  for (const auto& l : layers)
    for_parameters(l, [&](const OptionalTensor& t) { any = any || (t && t->requires_grad()); });
  return any;
}

}  // namespace

at::Tensor dense_block(const at::Tensor& given, const std::vector<DenseLayer>& layers,
                       const DenseBlockOptions& options) {
  at::Tensor x = given;
  const auto precision = x.defined() ? autocast_precision(x) : std::nullopt;
  if (precision) x = x.to(precision->storage);
  check_block(x, layers, options, precision.has_value());
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (!any_recorded(x, layers)) return run_block(x, layers, options, precision, false).buffer.values;
  variable_list parameters;
  for (const auto& l : layers)
    for_parameters(l, [&](const OptionalTensor& t) {
      if (t) parameters.push_back(*t);
    });
  return DenseBlockFunction::apply(x, at::TensorList(parameters), &layers, &options, &precision);
}

}  // namespace palimpsest::ops
