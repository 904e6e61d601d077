#include "palimpsest/models/residual.h"

namespace palimpsest::models {
namespace {

torch::nn::Sequential projection(const BlockOptions& o, int64_t out) {
  if (o.stride == 1 && o.in == out) return nullptr;
  return torch::nn::Sequential(conv(o.in, out, 1, o.stride), nn::Norm(out, o.norm.identity()));
}

/// The end of a block: what the shortcut is, and the sum.
at::Tensor finish(nn::Norm& norm, at::Tensor h, const at::Tensor& x, const nn::Pending& input,
                  torch::nn::Sequential& downsample, const nn::NormOptions& options) {
  if (downsample.is_empty()) return nn::end_block(norm, std::move(h), x, input, options);
  torch::nn::Conv2d projection(downsample->ptr<torch::nn::Conv2dImpl>(0));
  auto shortcut = downsample->at<nn::NormImpl>(1).forward(nn::read(x, input, projection, options.strategy));
  return nn::end_block(norm, std::move(h), shortcut, {}, options);
}

}  // namespace

BasicBlock::BasicBlock(const BlockOptions& o) : norm_(o.norm), input_(o.input()) {
  const int64_t out = o.planes * kExpansion;
  conv1_ = register_module("conv1", conv(o.in, out, 3, o.stride, o.first_dilation));
  bn1_ = register_module("bn1", nn::Norm(out, o.norm));
  conv2_ = register_module("conv2", conv(out, out, 3, 1, o.dilation));
  bn2_ = register_module("bn2", nn::Norm(out, o.norm.identity()));
  if (auto down = projection(o, out); !down.is_empty()) downsample_ = register_module("downsample", down);
}

at::Tensor BasicBlock::forward(const at::Tensor& x) {
  auto h = bn1_->forward_into(nn::read(x, input_, conv1_, norm_.strategy), conv2_);
  return finish(bn2_, std::move(h), x, input_, downsample_, norm_);
}

Bottleneck::Bottleneck(const BlockOptions& o) : norm_(o.norm), input_(o.input()) {
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
  auto h = bn1_->forward_into(nn::read(x, input_, conv1_, norm_.strategy), conv2_);
  h = bn2_->forward_into(std::move(h), conv3_);
  return finish(bn3_, std::move(h), x, input_, downsample_, norm_);
}

}  // namespace palimpsest::models
