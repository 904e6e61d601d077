#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/models/inverted_residual.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/deferred_activation.h"

#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <string>
#include <vector>

namespace palimpsest::models {

/// EfficientNet-B0: a 3x3 convolution, seven stages of inverted residual blocks with squeeze and excitation
/// (models/inverted_residual.h), and a 1x1 convolution to 1280 channels. Parameters and buffers have
/// torchvision's names and order, so torchvision's weights load unchanged. The paper's activation is SiLU, also
/// between the two layers of squeeze and excitation, where it stays whatever options.norm.activation is.
/// Stochastic depth rises from 0 in the first block to 15/16 of options.stochastic_depth in the last; dropout is
/// before the classifier. Both default to 0.2.
/// Initialization: torchvision's. Convolutions by Kaiming's normal rule, fan-out; the classifier uniform in
/// +-1 / sqrt(classes).
/// Source: Tan, Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML 2019.
class EfficientNet : public nn::Cloneable<EfficientNet, Backbone> {
 public:
  EfficientNet(std::string name, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;
  at::Tensor forward(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(features_, stem_, stages_, last_);
  }

  std::string name_;
  double dropout_;
  std::shared_ptr<torch::nn::Module> features_;
  std::shared_ptr<ConvNormAct> stem_, last_;
  std::vector<torch::nn::Sequential> stages_;
};

}  // namespace palimpsest::models
