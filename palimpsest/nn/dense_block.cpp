#include "palimpsest/nn/dense_block.h"

#include "palimpsest/base/error.h"
#include "palimpsest/kernels/dense_block.h"
#include "palimpsest/memory/recompute.h"
#include "palimpsest/nn/convolve.h"
#include "palimpsest/ops/concat_abn_conv.h"
#include "palimpsest/ops/feature_slots.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>

#include <memory>
#include <string>
#include <utility>

namespace palimpsest::nn {
namespace {

torch::nn::Conv2d square(int64_t in, int64_t out, int64_t kernel) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel).padding(kernel / 2).bias(false));
}

/// Keeps the gradient of `t` as long as the graph lives, as a layer with a buffer of its own for it does.
void own_gradient(const at::Tensor& t) {
  if (!t.requires_grad()) return;
  t.register_hook([own = std::make_shared<at::Tensor>()](const at::Tensor& gradient) { *own = gradient; });
}

void refuse_block(const std::string& message) {
  throw Error(ErrorKind::kUsage, "a densely connected block " + message);
}

}  // namespace

DenseStrategy default_dense_strategy(const NormOptions& norm) {
  if (norm.strategy == Strategy::kStandard) return DenseStrategy::kSharedGradient;
  return kernels::has_dense_product(norm.activation) ? DenseStrategy::kFused : DenseStrategy::kShared;
}

bool fits(DenseStrategy dense_strategy, Strategy strategy, Activation activation, bool pre_activation) {
  if (!fits(strategy, activation)) return false;
  return dense_strategy != DenseStrategy::kFused ||
         (strategy != Strategy::kStandard && (!pre_activation || kernels::has_dense_product(activation)));
}

void check_dense(DenseStrategy dense_strategy, Strategy strategy, Activation activation,
                 bool pre_activation) {
  check_pair(strategy, activation);
  if (fits(dense_strategy, strategy, activation, pre_activation)) return;
  if (strategy == Strategy::kStandard)
    refuse_block(
        "with dense strategy 'fused' keeps one tensor a bottleneck, which strategy 'standard' does not; take "
        "another strategy ('store_y' goes with every activation), or dense strategy 'shared'");
  refuse_block("with dense strategy 'fused' has 'relu', 'leaky_relu' or 'identity' as its activation, got '" +
               to_string(activation) + "'; take dense strategy 'shared' with it");
}

DenseLayerImpl::DenseLayerImpl(int64_t channels, const DenseBlockOptions& o) : options_(o) {
  const int64_t width = o.bottleneck * o.growth;
  // Over the concatenation: libtorch's layer, or one that keeps its input (which is made again).
  const bool operators =
      o.dense_strategy == DenseStrategy::kShared || o.dense_strategy == DenseStrategy::kFused;
  NormOptions first = o.norm;
  first.strategy = operators ? Strategy::kCheckpoint : Strategy::kStandard;
  if (o.pre_activation) norm1 = register_module("norm1", Norm(channels, first));
  conv1 = register_module("conv1", square(channels, width, 1));
  if (!o.pre_activation) norm1 = register_module("norm1", Norm(width, o.norm));
  if (o.pre_activation) norm2 = register_module("norm2", Norm(width, o.norm));
  conv2 = register_module("conv2", square(width, o.growth, 3));
  if (!o.pre_activation) norm2 = register_module("norm2", Norm(o.growth, o.norm));
}

at::Tensor DenseLayerImpl::read(const std::vector<at::Tensor>& features) {
  const bool naive = options_.dense_strategy == DenseStrategy::kNaive;
  at::Tensor x = at::cat(features, 1);
  if (naive) own_gradient(x);
  if (options_.pre_activation) {
    x = norm1->forward(std::move(x));
    if (naive) own_gradient(x);
  }
  at::Tensor h = convolve(conv1, x, options_.norm.strategy);
  if (naive) own_gradient(h);
  return h;
}

at::Tensor DenseLayerImpl::bottleneck(const std::vector<at::Tensor>& features) {
  const bool pre = options_.pre_activation;
  if (options_.dense_strategy == DenseStrategy::kShared && is_plain())
    return ops::concat_abn_conv(features, pre ? std::optional(norm1->tensors()) : std::nullopt, conv1->weight,
                                convolution_options(*conv1),
                                pre ? norm1->begin_operator() : ops::AbnOptions{});
  if (options_.dense_strategy == DenseStrategy::kCheckpoint) {
    auto self = std::static_pointer_cast<DenseLayerImpl>(shared_from_this());
    return memory::recompute([self](const std::vector<at::Tensor>& f) { return self->read(f); }, features,
                             memory::RecomputeOptions{});
  }
  return read(features);
}

at::Tensor DenseLayerImpl::forward(const std::vector<at::Tensor>& features) {
  at::Tensor h = bottleneck(features);
  at::Tensor f = (options_.pre_activation ? norm2 : norm1)->forward_into(std::move(h), conv2);
  if (!options_.pre_activation) f = norm2->forward(std::move(f));
  return options_.dropout > 0 ? at::dropout(f, options_.dropout, is_training()) : f;
}

bool DenseLayerImpl::is_plain() const {
  return !norm1->only_activation() && !norm2->only_activation() && !conv1->bias.defined() &&
         !conv2->bias.defined();
}

ops::DenseLayer DenseLayerImpl::begin_operator() {
  return {norm1->tensors(),           norm1->begin_operator(), conv1->weight,
          norm2->tensors(),           norm2->begin_operator(), conv2->weight,
          convolution_options(*conv2)};
}

DenseBlockImpl::DenseBlockImpl(const DenseBlockOptions& o) : options_(o) {
  if (o.in < 1 || o.layers < 1 || o.growth < 1 || o.bottleneck < 1)
    refuse_block("needs at least one input channel, layer, channel of growth and multiple of it, got in = " +
                 std::to_string(o.in) + ", layers = " + std::to_string(o.layers) +
                 ", growth = " + std::to_string(o.growth) + ", bottleneck = " + std::to_string(o.bottleneck));
  if (!(o.dropout >= 0 && o.dropout < 1))
    refuse_block("needs a dropout in [0, 1), got " + std::to_string(o.dropout));
  check_dense(o.dense_strategy, o.norm.strategy, o.norm.activation, o.pre_activation);
  for (int64_t i = 0; i < o.layers; ++i)
    layers_.push_back(
        register_module("denselayer" + std::to_string(i + 1), DenseLayer(o.in + i * o.growth, o)));
}

at::Tensor DenseBlockImpl::forward(const at::Tensor& x) {
  bool fused = options_.dense_strategy == DenseStrategy::kFused;
  for (const auto& layer : layers_) fused = fused && layer->is_plain();
  if (fused) {
    std::vector<ops::DenseLayer> layers;
    layers.reserve(layers_.size());
    for (auto& layer : layers_) layers.push_back(layer->begin_operator());
    return ops::dense_block(x, layers, {options_.pre_activation, is_training() ? options_.dropout : 0});
  }
  // Under autocast x may be of another type than the features.
  const bool slots = options_.dense_strategy != DenseStrategy::kNaive &&
                     options_.dense_strategy != DenseStrategy::kSharedGradient &&
                     !at::autocast::is_autocast_enabled(x.device().type());
  if (slots) {
    ops::FeatureSlots all(x, out_channels());
    for (auto& layer : layers_) all.put(layer->forward(all.features()));
    return all.result();
  }
  std::vector<at::Tensor> features{x};
  for (auto& layer : layers_) features.push_back(layer->forward(features));
  return at::cat(features, 1);
}

}  // namespace palimpsest::nn
