#include "palimpsest/models/resnext_preact.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/stage_planner.h"
#include "palimpsest/models/preact_block.h"
#include "palimpsest/nn/max_pool.h"

namespace palimpsest::models {

PreactResNeXt::PreactResNeXt(std::string name, const std::array<int64_t, 4>& blocks,
                             const BackboneOptions& options)
    : name_(std::move(name)) {
  constexpr int64_t kStemChannels = 64, kGroups = 64;
  auto mod1 = register_module("mod1", torch::nn::Sequential());
  const SquareConvolution inner_stem{.in = kStemChannels, .out = kStemChannels, .kernel = 3};
  conv1_ = conv({.in = 3, .out = kStemChannels, .kernel = 3, .stride = 2}, nn::ConvolutionBackend::kLibtorch);
  bn1_ = nn::BatchNormAct(kStemChannels, options.norm);
  conv2_ = conv(inner_stem, options.norm);
  bn2_ = nn::BatchNormAct(kStemChannels, options.norm);
  conv3_ = conv(inner_stem, options.norm);
  mod1->push_back("conv1", conv1_);
  mod1->push_back("bn1", bn1_);
  mod1->push_back("conv2", conv2_);
  mod1->push_back("bn2", bn2_);
  mod1->push_back("conv3", conv3_);
  StagePlanner planner(options.output_stride);
  int64_t channels = kStemChannels;
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    const auto geometry = planner.next(i == 0 ? 1 : 2);
    torch::nn::Sequential module;
    for (int64_t b = 0; b < blocks[i]; ++b) {
      const int64_t inner = 128 << i, outer = 256 << i;
      const PreactBlock::Convolution first{inner, 1, b == 0 ? geometry.stride : 1};
      const PreactBlock::Convolution middle{inner, 3, 1, geometry.dilation, kGroups};
      module->push_back("block" + std::to_string(b + 1),
                        std::make_shared<PreactBlock>(
                            PreactBlock::Options{channels, {first, middle, {outer}}, options.norm}));
      channels = outer;
    }
    modules_[i] = register_module("mod" + std::to_string(i + 2), module);
  }
  bn_out_ = register_module("bn_out", nn::BatchNormAct(channels, options.norm));
  initialize_by_glorot(*this, options.norm, register_classifier(channels, options.classes));
}

at::Tensor PreactResNeXt::features(const at::Tensor& images) {
  check_images(name_, images);
  at::Tensor x = bn1_->forward_into(conv1_->forward(images), conv2_);
  x = nn::max_pool2d(bn2_->forward_into(std::move(x), conv3_), bn_out_->options.strategy(), 3, 2, 1);
  for (auto& module : modules_) x = module->forward(x);
  return bn_out_->forward(std::move(x));
}

}  // namespace palimpsest::models
