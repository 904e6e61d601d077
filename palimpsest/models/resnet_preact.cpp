#include "palimpsest/models/resnet_preact.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/preact_block.h"

namespace palimpsest::models {

PreactResNet::PreactResNet(std::string name, int64_t blocks_of_stage, const BackboneOptions& options)
    : name_(std::move(name)) {
  int64_t channels = 16;
  conv1_ = register_module("conv1",
                           conv({.in = 3, .out = channels, .kernel = 3}, nn::ConvolutionBackend::kLibtorch));
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    torch::nn::Sequential layer;
    for (int64_t b = 0; b < blocks_of_stage; ++b) {
      const int64_t inner = 16 << i, outer = 64 << i;
      const PreactBlock::Convolution middle{inner, 3, i > 0 && b == 0 ? 2 : 1};
      layer->push_back(std::make_shared<PreactBlock>(
          PreactBlock::Options{channels, {{inner}, middle, {outer}}, options.norm}));
      channels = outer;
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
