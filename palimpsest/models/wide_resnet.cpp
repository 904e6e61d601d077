#include "palimpsest/models/wide_resnet.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/stage_planner.h"
#include "palimpsest/models/preact_block.h"
#include "palimpsest/nn/max_pool.h"

#include <vector>

namespace palimpsest::models {

namespace {

/// Channels of the convolutions of a block: 3x3 twice, or a bottleneck.
const std::array<std::vector<int64_t>, 6> kWidths = {
    {{128, 128}, {256, 256}, {512, 512}, {512, 1024}, {512, 1024, 2048}, {1024, 2048, 4096}}};
constexpr std::size_t kPooled = 2;  // mod2 and mod3 are behind a pooling
constexpr std::array<int64_t, 6> kStrides = {1, 1, 2, 2, 2, 1};

std::vector<PreactBlock::Convolution> convolutions_of(const std::vector<int64_t>& widths, bool first,
                                                      const StageGeometry& geometry) {
  const bool bottleneck = widths.size() == 3;
  std::vector<PreactBlock::Convolution> all(widths.size());
  for (std::size_t i = 0; i < widths.size(); ++i)
    all[i] = {widths[i], bottleneck ? 1 : 3, 1, bottleneck ? 1 : geometry.dilation};
  // The 3x3 convolution that may change the size.
  PreactBlock::Convolution& strided = all[bottleneck ? 1 : 0];
  strided.kernel = 3;
  strided.stride = first ? geometry.stride : 1;
  strided.dilation = first ? geometry.first_dilation : geometry.dilation;
  return all;
}

}  // namespace

WideResNet::WideResNet(std::string name, const std::array<int64_t, 6>& blocks, const BackboneOptions& options)
    : name_(std::move(name)) {
  int64_t channels = 64;
  auto mod1 = register_module("mod1", torch::nn::Sequential());
  conv1_ = conv({.in = 3, .out = channels, .kernel = 3}, nn::ConvolutionBackend::kLibtorch);
  mod1->push_back("conv1", conv1_);
  StagePlanner planner(options.output_stride);  // mod3 ends at stride 4, as the stems of other networks do
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    const StageGeometry geometry = i < kPooled ? StageGeometry{} : planner.next(kStrides[i]);
    torch::nn::Sequential module;
    for (int64_t b = 0; b < blocks[i]; ++b) {
      module->push_back("block" + std::to_string(b + 1),
                        std::make_shared<PreactBlock>(PreactBlock::Options{
                            channels, convolutions_of(kWidths[i], b == 0, geometry), options.norm}));
      channels = kWidths[i].back();
    }
    modules_[i] = register_module("mod" + std::to_string(i + 2), module);
  }
  bn_out_ = register_module("bn_out", nn::BatchNormAct(channels, options.norm));
  register_classifier(channels, options.classes);
  initialize_convolutions(*this, options.norm);
}

at::Tensor WideResNet::features(const at::Tensor& images) {
  check_images(name_, images);
  at::Tensor x = conv1_->forward(images);
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    if (i < kPooled) x = nn::max_pool2d(x, bn_out_->options.strategy(), 3, 2, 1);
    x = modules_[i]->forward(x);
  }
  return bn_out_->forward(std::move(x));
}

}  // namespace palimpsest::models
