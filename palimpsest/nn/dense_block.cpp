#include "palimpsest/nn/dense_block.h"

#include "palimpsest/base/error.h"
#include "palimpsest/kernels/dense_block.h"
#include "palimpsest/memory/recompute.h"
#include "palimpsest/nn/conv2d/functional.h"
#include "palimpsest/ops/concat_abn_conv.h"
#include "palimpsest/ops/feature_slots.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>

namespace palimpsest::nn {
namespace {

Conv2d square(int64_t in, int64_t out, int64_t kernel, Strategy strategy) {
  return Conv2d(torch::nn::Conv2dOptions(in, out, kernel).padding(kernel / 2).bias(false),
                convolution_backend(strategy));
}

/// Keeps the gradient of `t` as long as the graph lives, as a layer with its own gradient buffer does.
void own_gradient(const at::Tensor& t) {
  if (!t.requires_grad()) return;
  t.register_hook([own = std::make_shared<at::Tensor>()](const at::Tensor& gradient) { *own = gradient; });
}

[[noreturn]] void refuse_block(const std::string& message) {
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
        "with dense strategy 'fused' saves one tensor per bottleneck, which strategy 'standard' does not; "
        "take another strategy ('store_y' goes with every activation), or dense strategy 'shared'");
  refuse_block("with dense strategy 'fused' needs the activation 'relu', 'leaky_relu' or 'identity', got '" +
               to_string(activation) + "'; take dense strategy 'shared' with it");
}

DenseLayerImpl::DenseLayerImpl(int64_t channels, const DenseBlockOptions& o)
    : dense_strategy_(o.dense_strategy()), pre_activation_(o.pre_activation()) {
  const int64_t growth = o.growth(), width = o.bottleneck() * growth;
  const NormOptions& norm = o.norm();
  // norm1 over the concatenation is libtorch's layer, or a layer that saves its input (which is recomputed).
  const bool operators =
      dense_strategy_ == DenseStrategy::kShared || dense_strategy_ == DenseStrategy::kFused;
  NormOptions first = norm;
  first.strategy = operators ? Strategy::kCheckpoint : Strategy::kStandard;
  if (pre_activation_) norm1 = register_module("norm1", BatchNormAct(channels, first));
  conv1 = register_module("conv1", square(channels, width, 1, norm.strategy));
  if (!pre_activation_) norm1 = register_module("norm1", BatchNormAct(width, norm));
  if (pre_activation_) norm2 = register_module("norm2", BatchNormAct(width, norm));
  conv2 = register_module("conv2", square(width, growth, 3, norm.strategy));
  if (!pre_activation_) norm2 = register_module("norm2", BatchNormAct(growth, norm));
}

at::Tensor DenseLayerImpl::read(const std::vector<at::Tensor>& features) {
  const bool naive = dense_strategy_ == DenseStrategy::kNaive;
  at::Tensor x = at::cat(features, 1);
  if (naive) own_gradient(x);
  if (pre_activation_) {
    x = norm1->forward(std::move(x));
    if (naive) own_gradient(x);
  }
  at::Tensor h = conv1->forward(x);
  if (naive) own_gradient(h);
  return h;
}

at::Tensor DenseLayerImpl::bottleneck(const std::vector<at::Tensor>& features) {
  const bool is_empty = features.front().numel() == 0 && !norm1->shares_statistics();
  const bool one_operator = is_plain() && (!pre_activation_ || norm1->fits_operator());
  const bool saves_features =
      dense_strategy_ == DenseStrategy::kShared || dense_strategy_ == DenseStrategy::kFused;
  if (saves_features && one_operator && !is_empty)
    return ops::concat_abn_conv(features, pre_activation_ ? std::optional(norm1->tensors()) : std::nullopt,
                                conv1->weight, conv2d_detail::geometry(*conv1),
                                pre_activation_ ? norm1->begin_operator() : ops::AbnOptions{});
  if (dense_strategy_ == DenseStrategy::kCheckpoint && !is_empty) {
    auto self = std::static_pointer_cast<DenseLayerImpl>(shared_from_this());
    return memory::recompute([self](const std::vector<at::Tensor>& f) { return self->read(f); }, features,
                             memory::RecomputeOptions{});
  }
  return read(features);
}

at::Tensor DenseLayerImpl::forward(const std::vector<at::Tensor>& features, double dropout) {
  at::Tensor h = bottleneck(features);
  at::Tensor f = (pre_activation_ ? norm2 : norm1)->forward_into(std::move(h), conv2);
  if (!pre_activation_) f = norm2->forward(std::move(f));
  return dropout > 0 ? at::dropout(f, dropout, is_training()) : f;
}

bool DenseLayerImpl::shares_statistics() const {
  return norm1->shares_statistics() || norm2->shares_statistics();
}

bool DenseLayerImpl::all_share_statistics(bool shared) const {
  return norm1->shares_statistics() == shared && norm2->shares_statistics() == shared;
}

bool DenseLayerImpl::is_plain() const {
  return !norm1->is_activation_only() && !norm2->is_activation_only() && !conv1->bias.defined() &&
         !conv2->bias.defined();
}

bool DenseLayerImpl::fits_block_operator() const {
  return is_plain() && norm1->fits_operator() && norm2->fits_operator();
}

ops::DenseLayer DenseLayerImpl::begin_operator() {
  return {norm1->tensors(),
          norm1->begin_operator(),
          conv1->weight,
          norm2->tensors(),
          norm2->begin_operator(),
          conv2->weight,
          conv2d_detail::geometry(*conv2)};
}

DenseBlockImpl::DenseBlockImpl(const DenseBlockOptions& o) : options(o) {
  if (o.in_channels() < 1 || o.layers() < 1 || o.growth() < 1 || o.bottleneck() < 1)
    refuse_block("needs in_channels, layers, growth and bottleneck of at least 1, got in_channels = " +
                 std::to_string(o.in_channels()) + ", layers = " + std::to_string(o.layers()) +
                 ", growth = " + std::to_string(o.growth()) +
                 ", bottleneck = " + std::to_string(o.bottleneck()));
  if (!(o.dropout() >= 0 && o.dropout() < 1))
    refuse_block("needs a dropout in [0, 1), got " + std::to_string(o.dropout()));
  check_dense(o.dense_strategy(), o.norm().strategy, o.norm().activation, o.pre_activation());
  for (int64_t i = 0; i < o.layers(); ++i)
    layers_.push_back(register_module("denselayer" + std::to_string(i + 1),
                                      DenseLayer(o.in_channels() + i * o.growth(), o)));
}

at::Tensor DenseBlockImpl::forward(const at::Tensor& x) {
  if (x.dim() == 4 && x.size(1) != options.in_channels()) {
    std::ostringstream shape;
    shape << x.sizes();
    refuse_block("was made for " + std::to_string(options.in_channels()) + " input channels, got " +
                 std::to_string(x.size(1)) + " in x of shape " + shape.str());
  }
  const DenseStrategy strategy = options.dense_strategy();
  // All ranks of a group must run the same operators.
  bool shared = false;
  for (const auto& layer : layers_) shared = shared || layer->shares_statistics();
  const bool is_empty = x.numel() == 0 && !shared;
  // The operator sums all statistics over one group; frozen layers among others share none.
  bool fused = strategy == DenseStrategy::kFused && !is_empty;
  for (const auto& layer : layers_)
    fused = fused && layer->fits_block_operator() && layer->all_share_statistics(shared);
  if (fused) {
    std::vector<ops::DenseLayer> layers;
    layers.reserve(layers_.size());
    for (auto& layer : layers_) layers.push_back(layer->begin_operator());
    return ops::dense_block(x, layers, {options.pre_activation(), is_training() ? options.dropout() : 0});
  }
  // Under autocast x may have another dtype than the features.
  const bool slots = strategy != DenseStrategy::kNaive && strategy != DenseStrategy::kSharedGradient &&
                     !at::autocast::is_autocast_enabled(x.device().type()) && !is_empty;
  if (slots) {
    ops::FeatureSlots all(x, out_channels());
    for (auto& layer : layers_) all.put(layer->forward(all.features(), options.dropout()));
    return all.result();
  }
  std::vector<at::Tensor> features{x};
  for (auto& layer : layers_) features.push_back(layer->forward(features, options.dropout()));
  return at::cat(features, 1);
}

}  // namespace palimpsest::nn
