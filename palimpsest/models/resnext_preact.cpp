#include "palimpsest/models/resnext_preact.h"

#include "palimpsest/nn/convolve.h"
#include "palimpsest/nn/max_pool.h"

namespace palimpsest::models {

PreactBottleneck::PreactBottleneck(const Options& o) {
  const auto [c1, c2, c3] = o.channels;
  const bool projects = o.stride != 1 || o.in != c3;
  bn1_ = register_module("bn1", nn::Norm(o.in, projects ? o.norm : o.norm.out_of_place()));
  bn2_ = nn::Norm(c1, o.norm);
  bn3_ = nn::Norm(c2, o.norm);
  conv1_ = conv(o.in, c1, 1);
  conv2_ = conv(c1, c2, 3, o.stride, o.dilation, o.groups);
  conv3_ = conv(c2, c3, 1);
  auto convs = register_module("convs", torch::nn::Sequential());
  convs->push_back("conv1", conv1_);
  convs->push_back("bn2", bn2_);
  convs->push_back("conv2", conv2_);
  convs->push_back("bn3", bn3_);
  convs->push_back("conv3", conv3_);
  if (projects) proj_conv_ = register_module("proj_conv", conv(o.in, c3, 1, o.stride));
}

at::Tensor PreactBottleneck::forward(const at::Tensor& x) {
  at::Tensor h, shortcut = x;
  if (proj_conv_.is_empty()) {
    h = bn1_->forward_into(x, conv1_);
  } else {
    const auto z = bn1_->forward(x);
    h = nn::convolve(conv1_, z, bn1_->strategy);
    shortcut = nn::convolve(proj_conv_, z, bn1_->strategy);
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
  conv1_ = conv(3, kStemChannels, 7, 2);
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
  bn_out_ = register_module("bn_out", nn::Norm(channels, options.norm));
  register_classifier(channels, options.classes);
  initialize_convolutions(*this, options.norm);
}

at::Tensor PreactResNeXt::features(const at::Tensor& images) {
  check_images(name_, images);
  auto x = nn::max_pool2d(nn::convolve(conv1_, images), bn_out_->strategy, 3, 2, 1);
  for (auto& module : modules_) x = module->forward(x);
  return bn_out_->forward(std::move(x));
}

}  // namespace palimpsest::models
