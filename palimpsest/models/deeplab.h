#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace palimpsest::models {

/// The DeepLabV3 head, which makes `channels` channels of context from features of stride 8 or 16. `channels`
/// is 256 in the paper and in this table.
/// | layer                                                                       | names                   |
/// | --------------------------------------------------------------------------- | ----------------------- |
/// | four parallel convolutions to 256 channels: 1x1, 3x3 of dilation 12, 24, 36 | map_convs.0 to .3       |
/// | their normalization + activation, over the four stacked outputs             | map_bn                  |
/// | global branch of 256 channels: mean over all pixels, 1x1 convolution        | global_pooling_conv     |
/// | its normalization + activation                                              | global_pooling_bn       |
/// | 1x1 convolution of all 1280 channels to 256                                 | red_conv, pool_red_conv |
/// | normalization + activation                                                  | red_bn                  |
/// One normalization over the four stacked outputs equals four normalizations, because statistics are per
/// channel. The last convolution is split by linearity: the global branch is constant over the image, so its
/// share is computed on one pixel and added, instead of being copied to every pixel and stacked. The
/// dilations are the paper's for output stride 8, and stay the same for 16. Channels saved for backward
/// beside the input: 2 * 1024 + 2 * 256 under `standard`, 1024 + 256 in place.
/// Sources: Chen, Papandreou, Schroff, Adam, "Rethinking Atrous Convolution for Semantic Image Segmentation",
/// 2017; Rota Bulo, Porzi, Kontschieder, CVPR 2018, section 4.2, whose release has these names.
class DeepLabV3Head : public nn::Cloneable<DeepLabV3Head> {
 public:
  DeepLabV3Head(int64_t in, int64_t channels, const nn::NormOptions& norm);

  /// Maps (N, in, h, w) to (N, channels, h, w). In training the global branch normalizes one value per image
  /// and channel, so a batch of one image throws Error(kUsage).
  at::Tensor forward(const at::Tensor& features);

 private:
  void rebind(nn::Clones& clones) override {
    clones(map_convs_, map_bn_, global_pooling_conv_, global_pooling_bn_, red_conv_, pool_red_conv_, red_bn_);
  }

  bool libtorch_mean_;  ///< `standard` runs libtorch's operators only
  std::vector<nn::Conv2d> map_convs_;
  nn::BatchNormAct map_bn_{nullptr};
  nn::Conv2d global_pooling_conv_{nullptr};
  nn::BatchNormAct global_pooling_bn_{nullptr};
  nn::Conv2d red_conv_{nullptr}, pool_red_conv_{nullptr};
  nn::BatchNormAct red_bn_{nullptr};
};

/// DeepLabV3: a backbone (`body`), the head (`head`), a 1x1 convolution to classes (`cls`, the classifier),
/// and bilinear upsampling of the logits to the size of the images.
class DeepLabV3 : public nn::Cloneable<DeepLabV3, nn::Model> {
 public:
  /// `body` must have output stride 8 or 16 and no classifier. The head has 256 channels, or half of the
  /// body's channels if that is less. 0 classes: no classifier.
  DeepLabV3(std::shared_ptr<Backbone> body, int64_t classes, const nn::NormOptions& norm);

  /// Maps (N, 3, H, W) to logits (N, classes, H, W). Without a classifier returns the context,
  /// (N, classifier_channels(), h, w).
  at::Tensor forward(const at::Tensor& images) override;
  at::Tensor coarse_logits(const at::Tensor& images) override;
  bool is_segmentation() const override { return true; }

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(body_, head_);
  }

  std::shared_ptr<Backbone> body_;
  std::shared_ptr<DeepLabV3Head> head_;
};

}  // namespace palimpsest::models
