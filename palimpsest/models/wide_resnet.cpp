#include "palimpsest/models/wide_resnet.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/stage_planner.h"
#include "palimpsest/models/resnext_preact.h"
#include "palimpsest/nn/max_pool.h"

namespace palimpsest::models {

PreactBlock::PreactBlock(const Options& o) {
  const auto [c1, c2] = o.channels;
  const bool projects = o.stride != 1 || o.in != c2;
  bn1_ = register_module("bn1", nn::BatchNormAct(o.in, projects ? o.norm : o.norm.out_of_place()));
  bn2_ = nn::BatchNormAct(c1, o.norm);
  conv1_ =
      conv({.in = o.in, .out = c1, .kernel = 3, .stride = o.stride, .dilation = o.first_dilation}, o.norm);
  conv2_ = conv({.in = c1, .out = c2, .kernel = 3, .dilation = o.dilation}, o.norm);
  auto convs = register_module("convs", torch::nn::Sequential());
  convs->push_back("conv1", conv1_);
  convs->push_back("bn2", bn2_);
  convs->push_back("conv2", conv2_);
  if (projects)
    proj_conv_ = register_module("proj_conv", conv({.in = o.in, .out = c2, .stride = o.stride}, o.norm));
}

at::Tensor PreactBlock::forward(const at::Tensor& x) {
  at::Tensor h, shortcut = x;
  if (proj_conv_.is_empty()) {
    h = bn1_->forward_into(x, conv1_);
  } else {
    const auto z = bn1_->forward(x);
    h = conv1_->forward(z);
    shortcut = proj_conv_->forward(z);
  }
  // Nothing reads conv2's output in backward, so the sum may take its place.
  return bn2_->forward_into(std::move(h), conv2_).add_(shortcut);
}

namespace {

constexpr std::array<std::array<int64_t, 2>, 4> kBlocks = {{{128, 128}, {256, 256}, {512, 512}, {512, 1024}}};
constexpr std::array<std::array<int64_t, 3>, 2> kBottlenecks = {{{512, 1024, 2048}, {1024, 2048, 4096}}};
constexpr std::size_t kPooled = 2;  // mod2 and mod3 are behind a pooling
constexpr std::array<int64_t, 6> kStrides = {1, 1, 2, 2, 2, 1};

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
      const int64_t stride = b == 0 ? geometry.stride : 1;
      const int64_t first_dilation = b == 0 ? geometry.first_dilation : geometry.dilation;
      const std::string block = "block" + std::to_string(b + 1);
      if (i < kBlocks.size()) {
        module->push_back(
            block, std::make_shared<PreactBlock>(PreactBlock::Options{
                       channels, kBlocks[i], stride, first_dilation, geometry.dilation, options.norm}));
        channels = kBlocks[i].back();
      } else {
        const auto& widths = kBottlenecks[i - kBlocks.size()];
        module->push_back(block, std::make_shared<PreactBottleneck>(PreactBottleneck::Options{
                                     channels, widths, stride, first_dilation, /*groups=*/1, options.norm}));
        channels = widths.back();
      }
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
