#include "palimpsest/models/resnet_preact.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/resnext_preact.h"

namespace palimpsest::models {

PreactResNet::PreactResNet(std::string name, int64_t blocks_of_stage, const BackboneOptions& options)
    : name_(std::move(name)) {
  int64_t channels = 16;
  conv1_ = register_module("conv1",
                           conv({.in = 3, .out = channels, .kernel = 3}, nn::ConvolutionBackend::kLibtorch));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    torch::nn::Sequential layer;
    for (int64_t b = 0; b < blocks_of_stage; ++b) {
      PreactBottleneck::Options o;
      o.in = channels;
      o.channels = {16 << i, 16 << i, 64 << i};
      o.stride = i > 0 && b == 0 ? 2 : 1;
      o.groups = 1;
      o.norm = options.norm;
      layer->push_back(std::make_shared<PreactBottleneck>(o));
      channels = o.channels[2];
    }
    layers_[i] = register_module("layer" + std::to_string(i + 1), layer);
  }
  bn_out_ = register_module("bn_out", nn::BatchNormAct(channels, options.norm));
  register_classifier(channels, options.classes);
  initialize_convolutions(*this, options.norm);
}

at::Tensor PreactResNet::features(const at::Tensor& images) {
  check_images(name_, images);
  at::Tensor x = conv1_->forward(images);
  for (auto& layer : layers_) x = layer->forward(x);
  return bn_out_->forward(std::move(x));
}

}  // namespace palimpsest::models
