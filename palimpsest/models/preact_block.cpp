#include "palimpsest/models/preact_block.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/nn/feature_dropout.h"

#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <utility>

namespace palimpsest::models {

PreactBlock::PreactBlock(const Options& o) : dropout_(o.dropout) {
  // A strategy that saves y leaves the activation to the convolution, which would else save the product, too.
  if (dropout_ > 0) dropped_ = nn::DeferredActivation::of_blocks(o.norm);
  int64_t stride = 1;
  for (const Convolution& c : o.convolutions) stride *= c.stride;
  const bool projects = stride != 1 || o.in != o.convolutions.back().out;
  if (o.activated) {
    norms_.emplace_back(nullptr);
  } else {
    norms_.push_back(
        register_module("bn1", nn::BatchNormAct(o.in, projects ? o.norm : o.norm.out_of_place())));
  }
  auto convs = register_module("convs", torch::nn::Sequential());
  int64_t channels = o.in;
  for (const Convolution& c : o.convolutions) {
    const std::string number = std::to_string(convs_.size() + 1);
    if (!convs_.empty()) {
      const bool last = convs_.size() + 1 == o.convolutions.size();
      norms_.emplace_back(channels, last && dropped_.is_deferred ? o.norm.identity() : o.norm);
      convs->push_back("bn" + number, norms_.back());
    }
    convs_.push_back(conv({channels, c.out, c.kernel, c.stride, c.dilation, c.groups}, o.norm));
    convs->push_back("conv" + number, convs_.back());
    channels = c.out;
  }
  if (projects)
    proj_conv_ = register_module("proj_conv", conv({.in = o.in, .out = channels, .stride = stride}, o.norm));
}

at::Tensor PreactBlock::last_convolution(at::Tensor h) {
  if (dropout_ == 0) return norms_.back()->forward_into(std::move(h), convs_.back());
  const at::Tensor t = norms_.back()->forward(std::move(h));
  return is_training() ? nn::feature_dropout_into(t, dropped_, *convs_.back(), dropout_)
                       : dropped_.forward_into(t, *convs_.back());
}

at::Tensor PreactBlock::forward(const at::Tensor& x) {
  at::Tensor h, shortcut = x;
  if (proj_conv_.is_empty()) {
    h = norms_[0]->forward_into(x, convs_[0]);
  } else {
    const auto z = norms_[0].is_empty() ? x : norms_[0]->forward(x);
    h = convs_[0]->forward(z);
    shortcut = proj_conv_->forward(z);
  }
  for (std::size_t i = 1; i + 1 < convs_.size(); ++i) h = norms_[i]->forward_into(std::move(h), convs_[i]);
  if (convs_.size() > 1) h = last_convolution(std::move(h));
  // Nothing reads the last convolution's output in backward, so the sum may take its place.
  return h.add_(shortcut);
}

}  // namespace palimpsest::models
