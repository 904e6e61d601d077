#include "palimpsest/models/resnet.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/stage_planner.h"
#include "palimpsest/models/residual.h"
#include "palimpsest/nn/max_pool.h"

namespace palimpsest::models {
namespace {

template <class Block>
torch::nn::Sequential blocks_of(int64_t& channels, int64_t planes, int64_t count,
                                const StageGeometry& geometry, const ResNetShape& shape,
                                const nn::NormOptions& norm, bool first_stage) {
  torch::nn::Sequential blocks;
  for (int64_t i = 0; i < count; ++i) {
    BlockOptions o;
    o.in = channels;
    o.planes = planes;
    o.stride = i == 0 ? geometry.stride : 1;
    o.first_dilation = i == 0 ? geometry.first_dilation : geometry.dilation;
    o.dilation = geometry.dilation;
    o.groups = shape.groups;
    o.width_per_group = shape.width_per_group;
    o.norm = norm;
    if (i > 0 || !first_stage) o.input = nn::DeferredActivation::of_blocks(norm);
    blocks->push_back(std::make_shared<Block>(o));
    channels = planes * Block::kExpansion;
  }
  return blocks;
}

}  // namespace

ResNet::ResNet(const ResNetShape& shape, const BackboneOptions& options)
    : shape_(shape), output_(nn::DeferredActivation::of_blocks(options.norm)) {
  conv1_ = register_module("conv1", conv({.in = 3, .out = shape.stem_channels, .kernel = 7, .stride = 2},
                                         nn::ConvolutionBackend::kLibtorch));
  bn1_ = register_module("bn1", nn::BatchNormAct(shape.stem_channels, options.norm));
  StagePlanner planner(options.output_stride);
  int64_t channels = shape.stem_channels;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto geometry = planner.next(i == 0 ? 1 : 2);
    const int64_t planes = shape.stem_channels << i;
    layers_[i] =
        shape.bottleneck
            ? blocks_of<Bottleneck>(channels, planes, shape.blocks[i], geometry, shape, options.norm, i == 0)
            : blocks_of<BasicBlock>(channels, planes, shape.blocks[i], geometry, shape, options.norm, i == 0);
    register_module("layer" + std::to_string(i + 1), layers_[i]);
  }
  register_classifier(channels, options.classes);
  initialize_convolutions(*this, options.norm);
}

at::Tensor ResNet::features(const at::Tensor& images) {
  check_images(shape_.name, images);
  auto x = bn1_->forward(conv1_->forward(images));
  x = nn::max_pool2d(x, bn1_->options.strategy(), 3, 2, 1);
  for (auto& layer : layers_) x = layer->forward(x);
  return output_.apply(x);
}

}  // namespace palimpsest::models
