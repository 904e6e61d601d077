#include "palimpsest/models/deeplab.h"

#include "palimpsest/base/error.h"
#include "palimpsest/models/common/convolution.h"
#include "palimpsest/nn/spatial_mean.h"

#include <ATen/ops/upsample_bilinear2d.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

namespace palimpsest::models {
namespace {

constexpr double kClassifierStd = 0.001;
constexpr int64_t kPaperChannels = 256;

}  // namespace

DeepLabV3Head::DeepLabV3Head(int64_t in, int64_t channels, const nn::NormOptions& norm)
    : libtorch_mean_(norm.strategy == nn::Strategy::kStandard) {
  map_convs_.push_back(conv({.in = in, .out = channels}, norm));
  for (const int64_t dilation : {12, 24, 36})
    map_convs_.push_back(conv({.in = in, .out = channels, .kernel = 3, .dilation = dilation}, norm));
  torch::nn::ModuleList list;
  for (auto& convolution : map_convs_) list->push_back(convolution);
  register_module("map_convs", list);
  const auto stacked = static_cast<int64_t>(map_convs_.size()) * channels;
  map_bn_ = register_module("map_bn", nn::BatchNormAct(stacked, norm));
  global_pooling_conv_ = register_module(
      "global_pooling_conv", conv({.in = in, .out = channels}, nn::ConvolutionBackend::kLibtorch));
  global_pooling_bn_ = register_module("global_pooling_bn", nn::BatchNormAct(channels, norm));
  red_conv_ = register_module("red_conv", conv({.in = stacked, .out = channels}, norm));
  pool_red_conv_ = register_module("pool_red_conv", conv({.in = channels, .out = channels}, norm));
  red_bn_ = register_module("red_bn", nn::BatchNormAct(channels, norm));
  initialize_convolutions(*this, norm);
}

at::Tensor DeepLabV3Head::forward(const at::Tensor& features) {
  if (global_pooling_bn_->is_training() && features.size(0) == 1 &&
      !global_pooling_bn_->shares_statistics()) {
    throw Error(ErrorKind::kUsage,
                "DeepLabV3 needs a batch of at least 2 images in training, got 1: its global branch "
                "normalizes one value per image and channel; raise the batch size ([train] batch "
                "divided by accumulate), freeze the statistics (--freeze-norm), or synchronize those of "
                "several processes (--sync-norm)");
  }
  at::Tensor global;
  if (!libtorch_mean_) global = nn::spatial_mean(features);  // before the other readers of the features
  at::Tensor out = map_bn_->forward_into(nn::stacked_forward(map_convs_, features), red_conv_);
  if (libtorch_mean_) global = features.mean({2, 3}, /*keepdim=*/true);

  global = global_pooling_conv_->forward(global);
  global = global_pooling_bn_->forward_into(std::move(global), pool_red_conv_);
  return red_bn_->forward(out.add_(global));
}

DeepLabV3::DeepLabV3(std::shared_ptr<Backbone> body, int64_t classes, const nn::NormOptions& norm) {
  body_ = register_module("body", std::move(body));
  const int64_t features = body_->feature_channels(), channels = std::min(kPaperChannels, features / 2);
  head_ = register_module("head", std::make_shared<DeepLabV3Head>(features, channels, norm));
  declare_classifier("cls", channels);
  if (classes == 0) return;
  const nn::Conv2d cls(torch::nn::Conv2dOptions(channels, classes, 1), nn::ConvolutionBackend::kLibtorch);
  // Weights near zero give all classes about the same probability, and the first steps hardly move the body.
  // The global branch normalizes one value per image: through it an untrained body would multiply a rounding
  // error by 30 in every step.
  const at::NoGradGuard no_grad;
  cls->weight.detach().normal_(0, kClassifierStd);
  cls->bias.detach().zero_();
  replace_classifier(cls);
}

at::Tensor DeepLabV3::coarse_logits(const at::Tensor& images) {
  at::Tensor x = head_->forward(body_->features(images));
  return has_classifier() ? classify(x) : x;
}

at::Tensor DeepLabV3::forward(const at::Tensor& images) {
  at::Tensor x = coarse_logits(images);
  if (!has_classifier()) return x;
  return at::upsample_bilinear2d(x, {images.size(2), images.size(3)}, /*align_corners=*/false);
}

}  // namespace palimpsest::models
