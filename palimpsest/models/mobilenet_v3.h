#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/models/inverted_residual.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/linear.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::models {

/// The shape of a MobileNetV3.
struct MobileNetV3Shape {
  struct Block {
    int64_t kernel, expanded, out;
    bool squeezes;    ///< the block has squeeze and excitation
    bool hard_swish;  ///< false: ReLU
    int64_t stride;
  };
  std::string name;  ///< for messages
  std::vector<Block> blocks;
  int64_t hidden = 1280;  ///< units of the layer before the classifier
};
MobileNetV3Shape mobilenet_v3_large();
MobileNetV3Shape mobilenet_v3_small();

/// MobileNetV3: a 3x3 convolution, inverted residual blocks (models/inverted_residual.h), a 1x1 convolution to
/// six times as many channels, and behind the global average a hidden layer with hard swish. Parameters and
/// buffers have torchvision's names and order, so torchvision's weights load unchanged; eps is 1e-3, momentum
/// 0.01. Squeeze and excitation has ReLU and hard sigmoid.
/// The activation hard swish means the paper's: ReLU in the first blocks, hard swish in the others. Any other
/// options.norm.activation is that of all normalizations. The hidden layer keeps hard swish. Dropout is before
/// the classifier and defaults to 0.2.
/// Initialization: torchvision's. Convolutions by Kaiming's normal rule, fan-out; linear layers with deviation
/// 0.01.
/// Source: Howard et al., "Searching for MobileNetV3", ICCV 2019.
class MobileNetV3 : public nn::Cloneable<MobileNetV3, Backbone> {
 public:
  MobileNetV3(const MobileNetV3Shape& shape, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;
  at::Tensor forward(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(features_, stem_, blocks_, last_, classifier_, hidden_);
  }

  std::string name_;
  double dropout_;
  std::shared_ptr<torch::nn::Module> features_, classifier_;
  std::shared_ptr<ConvNormAct> stem_, last_;
  std::vector<std::shared_ptr<InvertedResidual>> blocks_;
  nn::Linear hidden_{nullptr};
};

}  // namespace palimpsest::models
