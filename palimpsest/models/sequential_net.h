#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/linear.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::models {

/// The shape of a network without batch normalization and shortcuts: convolutions, some of them followed by
/// max pooling of stride 2, then fully connected layers.
struct SequentialShape {
  struct Convolution {
    std::string name;
    int64_t channels = 0;
    int64_t kernel = 3;
    int64_t stride = 1;
    bool pooled = false;  ///< max pooling follows the activation
  };
  std::string name;  ///< for messages
  std::vector<Convolution> convolutions;
  /// 2; or 3: the windows overlap, and one pixel of padding lets odd sizes halve as well.
  int64_t pool_kernel = 2;
  int64_t grid = 1;             ///< the fully connected layers read grid x grid pixels
  std::vector<int64_t> hidden;  ///< fully connected layers before the classifier: fc6, fc7
  double dropout = 0.5;         ///< after each hidden layer
};

/// AlexNet for images of 32 pixels. The channels of the paper are divided by `divisor` (2: one of its two
/// towers). A 5x5 convolution of stride 2 stands for 11x11 of stride 4, and 1024 hidden units for 4096. The
/// pooling overlaps. There is no local response normalization: Simonyan and Zisserman found that it gains
/// nothing.
/// Source: Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks",
/// NIPS 2012.
SequentialShape alexnet(const std::string& name, int64_t divisor);

/// VGG-16 (configuration D) for images of 32 pixels: its thirteen 3x3 convolutions with the channels divided
/// by `divisor`, and 512 hidden units instead of 4096, because the hidden layers read one pixel.
/// Source: Simonyan, Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR
/// 2015.
SequentialShape vgg16(const std::string& name, int64_t divisor);

/// AlexNet and VGG. Parameters have the names of Caffe's releases: conv1 .. conv5, conv1_1 .. conv5_3, fc6,
/// fc7, and `fc` for the classifier. The initialization is Kaiming's normal one by fan-in, with biases 0;
/// without normalization the initialization decides whether 16 layers train at all. Features of larger images
/// are averaged to the grid that the fully connected layers read. Each convolution saves its activated output
/// for backward, and each pooling one byte per output (ops/max_pool.h). Dropout draws from libtorch's
/// generator, in training mode only.
class SequentialNet : public nn::Cloneable<SequentialNet, Backbone> {
 public:
  /// Reads only the activation of options.norm, and ignores options.output_stride. With 0 classes the network
  /// has neither hidden layers nor a classifier.
  SequentialNet(const SequentialShape& shape, const BackboneOptions& options);

  /// Maps (N, 3, H, W) to (N, feature_channels(), grid, grid). Throws Error(kUsage) for images that are too
  /// small for the poolings.
  at::Tensor features(const at::Tensor& images) override;
  /// Returns logits (N, classes): the fully connected layers read the features of all pixels. Without a
  /// classifier returns the features.
  at::Tensor forward(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(convs_, hidden_);
  }

  SequentialShape shape_;
  nn::NormOptions norm_;
  std::vector<nn::Conv2d> convs_;
  std::vector<nn::Linear> hidden_;
};

}  // namespace palimpsest::models
