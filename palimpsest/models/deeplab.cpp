#include "palimpsest/models/deeplab.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/convolve.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>

namespace palimpsest::models {
namespace {

constexpr double kClassifierStd = 0.001;
constexpr int64_t kPaperChannels = 256;

}  // namespace

DeepLabV3Head::DeepLabV3Head(int64_t in, int64_t channels, const nn::NormOptions& norm) {
  map_convs_ = {conv(in, channels, 1), conv(in, channels, 3, 1, 12), conv(in, channels, 3, 1, 24),
                conv(in, channels, 3, 1, 36)};
  torch::nn::ModuleList list;
  for (auto& convolution : map_convs_) list->push_back(convolution);
  register_module("map_convs", list);
  const auto stacked = static_cast<int64_t>(map_convs_.size()) * channels;
  map_bn_ = register_module("map_bn", nn::Norm(stacked, norm));
  global_pooling_conv_ = register_module("global_pooling_conv", conv(in, channels, 1));
  global_pooling_bn_ = register_module("global_pooling_bn", nn::Norm(channels, norm));
  red_conv_ = register_module("red_conv", conv(stacked, channels, 1));
  pool_red_conv_ = register_module("pool_red_conv", conv(channels, channels, 1));
  red_bn_ = register_module("red_bn", nn::Norm(channels, norm));
  initialize_convolutions(*this, norm);
}

at::Tensor DeepLabV3Head::forward(const at::Tensor& features) {
  if (is_training() && features.size(0) < 2) {
    throw Error(ErrorKind::kUsage,
                "DeepLabV3 needs a batch of at least 2 images in training, got " +
                    std::to_string(features.size(0)) +
                    ": its global branch normalizes one value per image and channel; raise the batch size");
  }
  std::vector<at::Tensor> branches;
  branches.reserve(map_convs_.size());
  for (auto& convolution : map_convs_)
    branches.push_back(nn::convolve(convolution, features, map_bn_->strategy));
  auto stacked = at::cat(branches, 1);
  branches.clear();
  auto out = map_bn_->forward_into(std::move(stacked), red_conv_);

  auto global = nn::convolve(global_pooling_conv_, features.mean({2, 3}, /*keepdim=*/true));
  global = global_pooling_bn_->forward_into(std::move(global), pool_red_conv_);
  return red_bn_->forward(out.add_(global));
}

DeepLabV3::DeepLabV3(std::shared_ptr<Backbone> body, int64_t classes, const nn::NormOptions& norm) {
  body_ = register_module("body", std::move(body));
  const int64_t features = body_->feature_channels(), channels = std::min(kPaperChannels, features / 2);
  head_ = register_module("head", std::make_shared<DeepLabV3Head>(features, channels, norm));
  cls_ = register_module("cls", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, classes, 1)));
  // Near zero, so that training starts from even odds and the first steps hardly move the body: through the
  // global branch, which normalizes one value an image, an untrained body multiplies a rounding error 30
  // times a step.
  torch::NoGradGuard no_grad;
  cls_->weight.normal_(0, kClassifierStd);
  cls_->bias.zero_();
}

at::Tensor DeepLabV3::forward(const at::Tensor& images) {
  const auto logits = nn::convolve(cls_, head_->forward(body_->features(images)));
  return at::upsample_bilinear2d(logits, {images.size(2), images.size(3)}, /*align_corners=*/false);
}

}  // namespace palimpsest::models
