#include "palimpsest/models/resnet_preact.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/preact_block.h"
#include "palimpsest/nn/max_pool.h"

namespace palimpsest::models {

PreactResNetShape small_preact_resnet(const std::string& name, int64_t blocks_of_stage) {
  return {name, {blocks_of_stage, blocks_of_stage, blocks_of_stage}, 16, false};
}

PreactResNet::PreactResNet(const PreactResNetShape& shape, const BackboneOptions& options)
    : name_(shape.name) {
  int64_t channels = shape.planes;
  const bool large = shape.has_large_stem;
  conv1_ = register_module("conv1",
                           conv({.in = 3, .out = channels, .kernel = large ? 7 : 3, .stride = large ? 2 : 1},
                                nn::ConvolutionBackend::kLibtorch));
  if (large) bn1_ = register_module("bn1", nn::BatchNormAct(channels, options.norm));
  for (std::size_t i = 0; i < shape.blocks.size(); ++i) {
    torch::nn::Sequential layer;
    for (int64_t b = 0; b < shape.blocks[i]; ++b) {
      const int64_t inner = shape.planes << i, outer = 4 * inner;
      const PreactBlock::Convolution middle{inner, 3, i > 0 && b == 0 ? 2 : 1};
      layer->push_back(std::make_shared<PreactBlock>(PreactBlock::Options{
          channels, {{inner}, middle, {outer}}, options.norm, large && i == 0 && b == 0}));
      channels = outer;
    }
    layers_.push_back(register_module("layer" + std::to_string(i + 1), layer));
  }
  bn_out_ = register_module("bn_out", nn::BatchNormAct(channels, options.norm));
  register_classifier(channels, options.classes);
  initialize_convolutions(*this, options.norm);
}

at::Tensor PreactResNet::features(const at::Tensor& images) {
  check_images(name_, images);
  at::Tensor x = conv1_->forward(images);
  if (bn1_) x = nn::max_pool2d(bn1_->forward(std::move(x)), bn1_->options.strategy(), 3, 2, 1);
  for (auto& layer : layers_) x = layer->forward(x);
  return bn_out_->forward(std::move(x));
}

}  // namespace palimpsest::models
