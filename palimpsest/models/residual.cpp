#include "palimpsest/models/residual.h"

#include "palimpsest/nn/residual_end.h"

namespace palimpsest::models {
namespace {

torch::nn::Sequential projection(const BlockOptions& o, int64_t out) {
  if (o.stride == 1 && o.in == out) return nullptr;
  return torch::nn::Sequential(conv(o.in, out, 1, o.stride), nn::Norm(out, o.norm.identity()));
}

at::Tensor shortcut(const at::Tensor& x, torch::nn::Sequential& downsample) {
  return downsample.is_empty() ? x : downsample->forward(x);
}

}  // namespace

BasicBlock::BasicBlock(const BlockOptions& o) : norm_(o.norm) {
  const int64_t out = o.planes * kExpansion;
  conv1_ = register_module("conv1", conv(o.in, out, 3, o.stride, o.first_dilation));
  bn1_ = register_module("bn1", nn::Norm(out, o.norm));
  conv2_ = register_module("conv2", conv(out, out, 3, 1, o.dilation));
  bn2_ = register_module("bn2", nn::Norm(out, o.norm.identity()));
  if (auto down = projection(o, out); !down.is_empty()) downsample_ = register_module("downsample", down);
}

at::Tensor BasicBlock::forward(const at::Tensor& x) {
  auto h = bn1_->forward(conv1_->forward(x));
  h = bn2_->forward(conv2_->forward(h));
  return nn::add_and_activate(std::move(h), shortcut(x, downsample_), norm_);
}

Bottleneck::Bottleneck(const BlockOptions& o) : norm_(o.norm) {
  const int64_t width = o.planes * o.width_per_group / 64 * o.groups;
  const int64_t out = o.planes * kExpansion;
  conv1_ = register_module("conv1", conv(o.in, width, 1));
  bn1_ = register_module("bn1", nn::Norm(width, o.norm));
  conv2_ = register_module("conv2", conv(width, width, 3, o.stride, o.first_dilation, o.groups));
  bn2_ = register_module("bn2", nn::Norm(width, o.norm));
  conv3_ = register_module("conv3", conv(width, out, 1));
  bn3_ = register_module("bn3", nn::Norm(out, o.norm.identity()));
  if (auto down = projection(o, out); !down.is_empty()) downsample_ = register_module("downsample", down);
}

at::Tensor Bottleneck::forward(const at::Tensor& x) {
  auto h = bn1_->forward(conv1_->forward(x));
  h = bn2_->forward(conv2_->forward(h));
  h = bn3_->forward(conv3_->forward(h));
  return nn::add_and_activate(std::move(h), shortcut(x, downsample_), norm_);
}

}  // namespace palimpsest::models
