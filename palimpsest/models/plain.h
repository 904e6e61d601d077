#pragma once

#include "palimpsest/models/backbone.h"

#include <string>
#include <vector>

namespace palimpsest::models {

/// The shape of a network older than batch normalization and shortcuts: convolutions, some followed by max
/// pooling of stride 2, then fully connected layers.
struct PlainShape {
  struct Convolution {
    std::string name;
    int64_t channels = 0;
    int64_t kernel = 3;
    int64_t stride = 1;
    bool pooled = false;  ///< max pooling follows the activation
  };
  std::string name;  ///< for messages
  std::vector<Convolution> convolutions;
  int64_t pool_kernel = 2;  ///< 2, or 3: the windows overlap, and a pixel of padding halves odd sizes, too
  int64_t grid = 1;         ///< pixels across of what the fully connected layers read
  std::vector<int64_t> hidden;  ///< fully connected layers before the classifier: fc6, fc7
  double dropout = 0.5;         ///< after each of them
};

/// AlexNet for images of 32 pixels: the channels of the paper divided by `divisor` (2: one of its two
/// towers), 5x5 of stride 2 in place of 11x11 of stride 4, overlapping pooling, 1024 hidden units in place of
/// 4096, no local response normalization, which Simonyan and Zisserman found to gain nothing. Source:
/// Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks", NIPS
/// 2012.
PlainShape alexnet(const std::string& name, int64_t divisor);

/// VGG-16 (configuration D) for images of 32 pixels: its thirteen 3x3 convolutions with the channels divided
/// by `divisor`, and 512 hidden units in place of 4096, as one pixel is left for them to read. Source:
/// Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015.
PlainShape vgg16(const std::string& name, int64_t divisor);

/// AlexNet and VGG. Parameters have the names of Caffe's releases: conv1 .. conv5, conv1_1 .. conv5_3, fc6,
/// fc7, and `fc` for the classifier. Without normalization the start decides whether 16 layers train at all:
/// Kaiming's normal initialization by fan-in, biases 0. Larger images are averaged to the grid that the fully
/// connected layers read. Saved for backward: a convolution's activated output, and one byte an output of a
/// pooling (ops/max_pool.h). Dropout draws from libtorch's generator, in training mode only.
class PlainNet : public nn::Model {
 public:
  /// options.norm says the activation; its strategy must be `standard`. options.classes >= 1.
  PlainNet(const PlainShape& shape, const BackboneOptions& options);

  /// (N, 3, H, W) to logits (N, classes). Throws Error(kUsage) for images that the poolings leave nothing of.
  at::Tensor forward(const at::Tensor& images) override;
  bool segments() const override { return false; }

 private:
  PlainShape shape_;
  nn::NormOptions norm_;
  std::vector<torch::nn::Conv2d> convs_;
  std::vector<torch::nn::Linear> hidden_;
  torch::nn::Linear fc_{nullptr};
};

}  // namespace palimpsest::models
