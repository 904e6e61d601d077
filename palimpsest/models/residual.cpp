#include "palimpsest/models/residual.h"

#include "palimpsest/models/common/convolution.h"

namespace palimpsest::models {
namespace {

torch::nn::Sequential projection(const BlockOptions& o, int64_t out) {
  if (o.stride == 1 && o.in == out) return nullptr;
  return torch::nn::Sequential(conv({.in = o.in, .out = out, .stride = o.stride}, o.norm),
                               nn::BatchNormAct(out, o.norm.identity()));
}

/// Ends a block: computes the shortcut and the sum.
at::Tensor add_shortcut(nn::BatchNormAct& norm, at::Tensor h, const at::Tensor& x,
                        const nn::DeferredActivation& input, const nn::DeferredActivation& output,
                        torch::nn::Sequential& downsample) {
  if (downsample.is_empty()) return norm->forward_residual(std::move(h), x, input, output);
  auto projected = input.forward_into(x, downsample->at<nn::Conv2dImpl>(0));
  const auto shortcut = downsample->at<nn::BatchNormActImpl>(1).forward(std::move(projected));
  return norm->forward_residual(std::move(h), shortcut, {}, output);
}

}  // namespace

BasicBlock::BasicBlock(const BlockOptions& o)
    : input_(o.input), output_(nn::DeferredActivation::of_blocks(o.norm)) {
  const int64_t out = o.planes * kExpansion;
  conv1_ = register_module(
      "conv1",
      conv({.in = o.in, .out = out, .kernel = 3, .stride = o.stride, .dilation = o.first_dilation}, o.norm));
  bn1_ = register_module("bn1", nn::BatchNormAct(out, o.norm));
  conv2_ =
      register_module("conv2", conv({.in = out, .out = out, .kernel = 3, .dilation = o.dilation}, o.norm));
  bn2_ = register_module("bn2", nn::BatchNormAct(out, o.norm));
  if (auto down = projection(o, out); !down.is_empty()) downsample_ = register_module("downsample", down);
}

at::Tensor BasicBlock::forward(const at::Tensor& x) {
  auto h = bn1_->forward_into(input_.forward_into(x, *conv1_), conv2_);
  return add_shortcut(bn2_, std::move(h), x, input_, output_, downsample_);
}

Bottleneck::Bottleneck(const BlockOptions& o)
    : input_(o.input), output_(nn::DeferredActivation::of_blocks(o.norm)) {
  const int64_t width = o.planes * o.width_per_group / 64 * o.groups;
  const int64_t out = o.planes * kExpansion;
  conv1_ = register_module("conv1", conv({.in = o.in, .out = width}, o.norm));
  bn1_ = register_module("bn1", nn::BatchNormAct(width, o.norm));
  conv2_ = register_module("conv2", conv({.in = width,
                                          .out = width,
                                          .kernel = 3,
                                          .stride = o.stride,
                                          .dilation = o.first_dilation,
                                          .groups = o.groups},
                                         o.norm));
  bn2_ = register_module("bn2", nn::BatchNormAct(width, o.norm));
  conv3_ = register_module("conv3", conv({.in = width, .out = out}, o.norm));
  bn3_ = register_module("bn3", nn::BatchNormAct(out, o.norm));
  if (auto down = projection(o, out); !down.is_empty()) downsample_ = register_module("downsample", down);
}

at::Tensor Bottleneck::forward(const at::Tensor& x) {
  auto h = bn1_->forward_into(input_.forward_into(x, *conv1_), conv2_);
  h = bn2_->forward_into(std::move(h), conv3_);
  return add_shortcut(bn3_, std::move(h), x, input_, output_, downsample_);
}

}  // namespace palimpsest::models
