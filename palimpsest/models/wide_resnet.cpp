#include "palimpsest/models/wide_resnet.h"

#include "palimpsest/base/error.h"
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
constexpr std::size_t kPooled = 5, kPooledOfA2 = 2;  // mod2 to mod6, mod2 and mod3
constexpr std::array<int64_t, 6> kStridesOfA2 = {1, 1, 2, 2, 2, 1};
constexpr std::array<double, 6> kDropoutOfA2 = {0, 0, 0, 0, 0.3, 0.5};

std::vector<PreactBlock::Convolution> convolutions_of(const std::vector<int64_t>& widths, int64_t stride,
                                                      int64_t dilation) {
  const bool bottleneck = widths.size() == 3;
  std::vector<PreactBlock::Convolution> all;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const bool large = !bottleneck || i == 1;
    all.push_back({widths[i], large ? 3 : 1, i == 0 ? stride : 1, large ? dilation : 1});
  }
  return all;
}

void check_output_stride(const WideResNetShape& shape, int64_t output_stride) {
  if (shape.a2 || output_stride == 32) return;
  throw Error(ErrorKind::kUsage,
              shape.name +
                  " halves the image by poolings, which dilation cannot replace, and needs "
                  "an output stride of 32, got " +
                  std::to_string(output_stride) + "; take the form A2");
}

}  // namespace

WideResNet::WideResNet(const WideResNetShape& shape, const BackboneOptions& options)
    : name_(shape.name), pooled_(shape.a2 ? kPooledOfA2 : kPooled) {
  check_output_stride(shape, options.output_stride);
  int64_t channels = 64;
  auto mod1 = register_module("mod1", torch::nn::Sequential());
  conv1_ = conv({.in = 3, .out = channels, .kernel = 3}, nn::ConvolutionBackend::kLibtorch);
  mod1->push_back("conv1", conv1_);
  StagePlanner planner(
      options.output_stride);  // mod3 of A2 ends at stride 4, as the stems of other networks do
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    const StageGeometry geometry =
        shape.a2 && i >= kPooledOfA2 ? planner.next(kStridesOfA2[i]) : StageGeometry{};
    const bool drops = shape.a2 && kDropoutOfA2[i] > 0;
    torch::nn::Sequential module;
    for (int64_t b = 0; b < shape.blocks[i]; ++b) {
      PreactBlock::Options block{channels,
                                 convolutions_of(kWidths[i], b == 0 ? geometry.stride : 1, geometry.dilation),
                                 options.norm};
      if (drops) block.dropout = options.dropout.value_or(kDropoutOfA2[i]);
      module->push_back("block" + std::to_string(b + 1), std::make_shared<PreactBlock>(block));
      channels = kWidths[i].back();
    }
    modules_[i] = register_module("mod" + std::to_string(i + 2), module);
  }
  bn_out_ = register_module("bn_out", nn::BatchNormAct(channels, options.norm));
  initialize_by_glorot(*this, options.norm, register_classifier(channels, options.classes));
}

at::Tensor WideResNet::features(const at::Tensor& images) {
  check_images(name_, images);
  at::Tensor x = conv1_->forward(images);
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    if (i < pooled_) x = nn::max_pool2d(x, bn_out_->options.strategy(), 3, 2, 1);
    x = modules_[i]->forward(x);
  }
  return bn_out_->forward(std::move(x));
}

}  // namespace palimpsest::models
