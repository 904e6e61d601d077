#include "palimpsest/models/efficientnet.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/stage_planner.h"

#include <ATen/ops/dropout.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace palimpsest::models {
namespace {

struct Stage {
  int64_t expansion, kernel, stride, out, blocks;
};
constexpr std::array<Stage, 7> kStages = {{{1, 3, 1, 16, 1},
                                           {6, 3, 2, 24, 2},
                                           {6, 5, 2, 40, 2},
                                           {6, 3, 2, 80, 3},
                                           {6, 5, 1, 112, 3},
                                           {6, 5, 2, 192, 4},
                                           {6, 3, 1, 320, 1}}};
constexpr int64_t kEfficientStem = 32, kLastChannels = 1280;
constexpr double kEfficientDropout = 0.2, kStochasticDepth = 0.2;

}  // namespace

EfficientNet::EfficientNet(std::string name, const BackboneOptions& options)
    : name_(std::move(name)),
      dropout_(options.dropout.value_or(kEfficientDropout)),
      features_(register_module("features", std::make_shared<torch::nn::Module>("features"))) {
  const nn::NormOptions& norm = options.norm;
  // The first block has no shortcut: the depthwise convolution is the only reader of the stem.
  const auto stem = nn::DeferredActivation::of_blocks(norm);
  stem_ = features_->register_module(
      "0",
      std::make_shared<ConvNormAct>(
          conv({.in = 3, .out = kEfficientStem, .kernel = 3, .stride = 2}, nn::ConvolutionBackend::kLibtorch),
          nn::BatchNormActOptions(kEfficientStem, stem.is_deferred ? norm.identity() : norm)));
  StagePlanner planner(options.output_stride, /*reached=*/2);
  const double blocks = std::accumulate(kStages.begin(), kStages.end(), 0.0,
                                        [](double sum, const Stage& s) { return sum + s.blocks; });
  const double depth = options.stochastic_depth.value_or(kStochasticDepth);
  int64_t channels = kEfficientStem, number = 0;
  for (const Stage& s : kStages) {
    const StageGeometry geometry = planner.next(s.stride);
    torch::nn::Sequential stage;
    for (int64_t b = 0; b < s.blocks; ++b, ++number) {
      InvertedResidualOptions o{.in = channels, .expanded = channels * s.expansion, .out = s.out};
      o.kernel = s.kernel;
      o.stride = b == 0 ? geometry.stride : 1;
      o.dilation = b == 0 ? geometry.first_dilation : geometry.dilation;
      o.squeeze = nn::SqueezeExcitationOptions{.squeezed = std::max<int64_t>(1, channels / 4),
                                               .squeeze_activation = ops::SqueezeActivation::kSiLU,
                                               .gate_activation = ops::GateActivation::kSigmoid};
      o.stochastic_depth = depth * static_cast<double>(number) / blocks;
      o.norm = norm;
      if (number == 0) o.input = stem;
      stage->push_back(std::make_shared<InvertedResidual>(o));
      channels = s.out;
    }
    stages_.push_back(features_->register_module(std::to_string(stages_.size() + 1), stage));
  }
  last_ = features_->register_module(
      std::to_string(stages_.size() + 1),
      std::make_shared<ConvNormAct>(conv({.in = channels, .out = kLastChannels}, norm),
                                    nn::BatchNormActOptions(kLastChannels, norm)));
  const nn::Linear classifier = register_classifier(kLastChannels, options.classes, "classifier.1");
  initialize_mobile(*this, norm);
  if (classifier.is_empty()) return;
  const at::NoGradGuard no_grad;
  const double bound = 1 / std::sqrt(static_cast<double>(options.classes));
  classifier->weight.detach().uniform_(-bound, bound);
  classifier->bias.detach().zero_();
}

at::Tensor EfficientNet::features(const at::Tensor& images) {
  check_images(name_, images);
  at::Tensor x = stem_->forward(images);
  for (auto& stage : stages_) x = stage->forward(x);
  return last_->forward(x);
}

at::Tensor EfficientNet::forward(const at::Tensor& images) {
  at::Tensor x = features(images);
  if (!has_classifier()) return x;
  return classify(at::dropout(x.mean({2, 3}), dropout_, is_training()));
}

}  // namespace palimpsest::models
