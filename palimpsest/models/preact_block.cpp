#include "palimpsest/models/preact_block.h"

#include "palimpsest/models/common/convolution.h"

#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <utility>

namespace palimpsest::models {

PreactBlock::PreactBlock(const Options& o) {
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
      norms_.emplace_back(channels, o.norm);
      convs->push_back("bn" + number, norms_.back());
    }
    convs_.push_back(conv({channels, c.out, c.kernel, c.stride, c.dilation, c.groups}, o.norm));
    convs->push_back("conv" + number, convs_.back());
    channels = c.out;
  }
  if (projects)
    proj_conv_ = register_module("proj_conv", conv({.in = o.in, .out = channels, .stride = stride}, o.norm));
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
  for (std::size_t i = 1; i < convs_.size(); ++i) h = norms_[i]->forward_into(std::move(h), convs_[i]);
  // Nothing reads the last convolution's output in backward, so the sum may take its place.
  return h.add_(shortcut);
}

}  // namespace palimpsest::models
