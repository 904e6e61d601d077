#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/linear.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
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
    bool pooled = false;                  ///< max pooling follows the activation
    std::optional<int64_t> padding = {};  ///< default: kernel / 2
  };
  struct Hidden {
    std::string name;
    int64_t units = 0;
  };
  std::string name;  ///< for messages
  std::vector<Convolution> convolutions;
  int64_t pool_kernel = 2;        ///< 2; or 3: the windows overlap
  int64_t pool_padding = 0;       ///< 1 lets odd sizes halve as well
  int64_t grid = 1;               ///< the fully connected layers read grid x grid pixels
  std::vector<Hidden> hidden;     ///< fully connected layers before the classifier
  std::string classifier = "fc";  ///< its name
  double dropout = 0.5;           ///< after each hidden layer
};

// The names of convolutions, hidden layers and classifier may have two parts: "features.0".

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

/// AlexNet for images of 224 pixels, in torchvision's form, with its names and shapes, so that its weights load
/// unchanged: features.0, ..., classifier.1, classifier.4, classifier.6. The least image has 63 pixels.
/// Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, whose channels
/// (64, 192, 384, 256, 256) torchvision has.
SequentialShape alexnet_imagenet();

/// VGG-16 (configuration D) for images of 224 pixels, with torchvision's names and shapes: features.0, ...,
/// classifier.0, classifier.3, classifier.6. The least image has 32 pixels.
SequentialShape vgg16_imagenet();

/// AlexNet and VGG. At the scale of 32 pixels parameters have the names of Caffe's releases: conv1 .. conv5,
/// conv1_1 .. conv5_3, fc6, fc7, and `fc` for the classifier. Dropout follows each hidden layer, as in Caffe;
/// torchvision's AlexNet has it before them. The initialization is Kaiming's normal one by fan-in, with biases 0;
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
  int64_t least_side_ = 1;
  std::vector<nn::Conv2d> convs_;
  std::vector<nn::Linear> hidden_;
};

}  // namespace palimpsest::models
