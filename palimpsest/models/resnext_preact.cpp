#include "palimpsest/models/resnext_preact.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/stage_planner.h"
#include "palimpsest/nn/max_pool.h"

namespace palimpsest::models {

PreactBottleneck::PreactBottleneck(const Options& o) {
  const auto [c1, c2, c3] = o.channels;
  const bool projects = o.stride != 1 || o.in != c3;
  bn1_ = register_module("bn1", nn::BatchNormAct(o.in, projects ? o.norm : o.norm.out_of_place()));
  bn2_ = nn::BatchNormAct(c1, o.norm);
  bn3_ = nn::BatchNormAct(c2, o.norm);
  conv1_ = conv({.in = o.in, .out = c1}, o.norm);
  conv2_ =
      conv({.in = c1, .out = c2, .kernel = 3, .stride = o.stride, .dilation = o.dilation, .groups = o.groups},
           o.norm);
  conv3_ = conv({.in = c2, .out = c3}, o.norm);
  auto convs = register_module("convs", torch::nn::Sequential());
  convs->push_back("conv1", conv1_);
  convs->push_back("bn2", bn2_);
  convs->push_back("conv2", conv2_);
  convs->push_back("bn3", bn3_);
  convs->push_back("conv3", conv3_);
  if (projects)
    proj_conv_ = register_module("proj_conv", conv({.in = o.in, .out = c3, .stride = o.stride}, o.norm));
}

at::Tensor PreactBottleneck::forward(const at::Tensor& x) {
  at::Tensor h, shortcut = x;
  if (proj_conv_.is_empty()) {
    h = bn1_->forward_into(x, conv1_);
  } else {
    const auto z = bn1_->forward(x);
    h = conv1_->forward(z);
    shortcut = proj_conv_->forward(z);
  }
  h = bn2_->forward_into(std::move(h), conv2_);
  // Nothing reads conv3's output in backward, so the sum may take its place.
  return bn3_->forward_into(std::move(h), conv3_).add_(shortcut);
}

PreactResNeXt::PreactResNeXt(std::string name, const std::array<int64_t, 4>& blocks,
                             const BackboneOptions& options)
    : name_(std::move(name)) {
  constexpr int64_t kStemChannels = 64;
  auto mod1 = register_module("mod1", torch::nn::Sequential());
  conv1_ = conv({.in = 3, .out = kStemChannels, .kernel = 7, .stride = 2}, nn::ConvolutionBackend::kLibtorch);
  mod1->push_back("conv1", conv1_);
  StagePlanner planner(options.output_stride);
  int64_t channels = kStemChannels;
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    const auto geometry = planner.next(i == 0 ? 1 : 2);
    torch::nn::Sequential module;
    for (int64_t b = 0; b < blocks[i]; ++b) {
      PreactBottleneck::Options o;
      o.in = channels;
      o.channels = {128 << i, 128 << i, 256 << i};
      o.stride = b == 0 ? geometry.stride : 1;
      o.dilation = b == 0 ? geometry.first_dilation : geometry.dilation;
      o.norm = options.norm;
      module->push_back("block" + std::to_string(b + 1), std::make_shared<PreactBottleneck>(o));
      channels = o.channels[2];
    }
    modules_[i] = register_module("mod" + std::to_string(i + 2), module);
  }
  bn_out_ = register_module("bn_out", nn::BatchNormAct(channels, options.norm));
  register_classifier(channels, options.classes);
  initialize_convolutions(*this, options.norm);
}

at::Tensor PreactResNeXt::features(const at::Tensor& images) {
  check_images(name_, images);
  auto x = nn::max_pool2d(conv1_->forward(images), bn_out_->options.strategy(), 3, 2, 1);
  for (auto& module : modules_) x = module->forward(x);
  return bn_out_->forward(std::move(x));
}

}  // namespace palimpsest::models
