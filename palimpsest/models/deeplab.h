#pragma once

#include "palimpsest/models/backbone.h"

#include <torch/nn/modules/container/modulelist.h>

#include <memory>
#include <vector>

namespace palimpsest::models {

/// The DeepLabV3 head: `channels` of context from features of stride 8 or 16. In the paper, and in what
/// follows, they are 256.
///   four parallel convolutions of 256 channels: 1x1, and 3x3 of dilation 12, 24 and 36     map_convs.0 to .3
///   one global branch of 256 channels: mean over all pixels, 1x1 convolution global_pooling_conv
///   normalization + activation of each                                                      map_bn,
///   global_pooling_bn all 1280 channels through a 1x1 convolution to 256, normalization + activation
///   red_conv + pool_red_conv, red_bn
/// One normalization over the four stacked outputs is four of them: statistics are per channel. The last
/// convolution is split by linearity: the global branch is constant over the image, so its share is computed
/// on one pixel and added, instead of being copied to every pixel and stacked. Dilations are the paper's for
/// either output stride. Saved for backward beside the input, in channels: `standard` 2 * 1024 + 2 * 256, in
/// place 1024 + 256. Sources: Chen, Papandreou, Schroff, Adam, "Rethinking Atrous Convolution for Semantic
/// Image Segmentation", 2017; Rota Bulo, Porzi, Kontschieder, CVPR 2018, section 4.2, whose release has these
/// names.
class DeepLabV3Head : public torch::nn::Module {
 public:
  DeepLabV3Head(int64_t in, int64_t channels, const nn::NormOptions& norm);

  /// (N, in, h, w) to (N, channels, h, w). In training the global branch normalizes one value an image and
  /// channel, so a batch of one is an Error(kUsage).
  at::Tensor forward(const at::Tensor& features);

 private:
  std::vector<torch::nn::Conv2d> map_convs_;
  nn::Norm map_bn_{nullptr};
  torch::nn::Conv2d global_pooling_conv_{nullptr};
  nn::Norm global_pooling_bn_{nullptr};
  torch::nn::Conv2d red_conv_{nullptr}, pool_red_conv_{nullptr};
  nn::Norm red_bn_{nullptr};
};

/// A backbone (`body`), the head (`head`), a 1x1 convolution to classes (`cls`), and bilinear upsampling of
/// the logits to the size of the images.
class DeepLabV3 : public nn::Model {
 public:
  /// `body` has output stride 8 or 16 and no classifier. The head has 256 channels, or half of the body's
  /// where that is less.
  DeepLabV3(std::shared_ptr<Backbone> body, int64_t classes, const nn::NormOptions& norm);

  /// (N, 3, H, W) to logits (N, classes, H, W).
  at::Tensor forward(const at::Tensor& images) override;
  bool segments() const override { return true; }

 private:
  std::shared_ptr<Backbone> body_;
  std::shared_ptr<DeepLabV3Head> head_;
  torch::nn::Conv2d cls_{nullptr};
};

}  // namespace palimpsest::models
