#include "palimpsest/models/mobilenet_v3.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/stage_planner.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/hardswish.h>

#include <algorithm>
#include <utility>

namespace palimpsest::models {
namespace {

constexpr int64_t kMobileStem = 16;
constexpr double kMobileDropout = 0.2, kLinearStd = 0.01;
constexpr NormConstants kConstants{.eps = 1e-3, .momentum = 0.01};

/// A quarter of the channels, rounded to a multiple of 8 that is not below nine tenths of it.
int64_t squeezed_channels(int64_t expanded) {
  const int64_t quarter = expanded / 4, rounded = std::max<int64_t>(8, (quarter + 4) / 8 * 8);
  return 10 * rounded < 9 * quarter ? rounded + 8 : rounded;
}

void start(const nn::Linear& layer) {
  const at::NoGradGuard no_grad;
  layer->weight.detach().normal_(0, kLinearStd);
  layer->bias.detach().zero_();
}

}  // namespace

MobileNetV3Shape mobilenet_v3_large() {
  return {"mobilenet_v3_large",
          {{3, 16, 16, false, false, 1},
           {3, 64, 24, false, false, 2},
           {3, 72, 24, false, false, 1},
           {5, 72, 40, true, false, 2},
           {5, 120, 40, true, false, 1},
           {5, 120, 40, true, false, 1},
           {3, 240, 80, false, true, 2},
           {3, 200, 80, false, true, 1},
           {3, 184, 80, false, true, 1},
           {3, 184, 80, false, true, 1},
           {3, 480, 112, true, true, 1},
           {3, 672, 112, true, true, 1},
           {5, 672, 160, true, true, 2},
           {5, 960, 160, true, true, 1},
           {5, 960, 160, true, true, 1}},
          1280};
}

MobileNetV3Shape mobilenet_v3_small() {
  return {"mobilenet_v3_small",
          {{3, 16, 16, true, false, 2},
           {3, 72, 24, false, false, 2},
           {3, 88, 24, false, false, 1},
           {5, 96, 40, true, true, 2},
           {5, 240, 40, true, true, 1},
           {5, 240, 40, true, true, 1},
           {5, 120, 48, true, true, 1},
           {5, 144, 48, true, true, 1},
           {5, 288, 96, true, true, 2},
           {5, 576, 96, true, true, 1},
           {5, 576, 96, true, true, 1}},
          1024};
}

MobileNetV3::MobileNetV3(const MobileNetV3Shape& shape, const BackboneOptions& options)
    : name_(shape.name),
      dropout_(options.dropout.value_or(kMobileDropout)),
      features_(register_module("features", std::make_shared<torch::nn::Module>("features"))) {
  const nn::NormOptions& norm = options.norm;
  nn::NormOptions early = norm;
  if (norm.activation == nn::Activation::kHardSwish) early.activation = nn::Activation::kReLU;
  int parts = 0;
  const auto add = [&]<class Part>(const std::shared_ptr<Part>& part) {
    return features_->register_module(std::to_string(parts++), part);
  };
  const auto stem = nn::DeferredActivation::of_blocks(norm);
  stem_ = add(std::make_shared<ConvNormAct>(
      conv({.in = 3, .out = kMobileStem, .kernel = 3, .stride = 2}, nn::ConvolutionBackend::kLibtorch),
      norm_of(kMobileStem, stem.is_deferred ? norm.identity() : norm, kConstants)));
  StagePlanner planner(options.output_stride, /*reached=*/2);
  int64_t channels = kMobileStem;
  for (const MobileNetV3Shape::Block& b : shape.blocks) {
    InvertedResidualOptions o{.in = channels, .expanded = b.expanded, .out = b.out};
    o.kernel = b.kernel;
    const StageGeometry geometry = planner.next(b.stride);
    o.stride = geometry.stride;
    o.dilation = geometry.first_dilation;
    if (b.squeezes)
      o.squeeze = nn::SqueezeExcitationOptions{.squeezed = squeezed_channels(b.expanded),
                                               .gate_activation = ops::GateActivation::kHardSigmoid};
    o.norm = b.hard_swish ? norm : early;
    o.constants = kConstants;
    if (blocks_.empty()) o.input = stem;
    blocks_.push_back(add(std::make_shared<InvertedResidual>(o)));
    channels = b.out;
  }
  const int64_t last = 6 * channels;
  last_ = add(std::make_shared<ConvNormAct>(conv({.in = channels, .out = last}, norm),
                                            norm_of(last, norm, kConstants)));
  if (options.classes > 0) {
    classifier_ = register_module("classifier", std::make_shared<torch::nn::Module>("classifier"));
    hidden_ = classifier_->register_module("0", nn::Linear(last, shape.hidden));
  }
  const nn::Linear classifier =
      register_classifier(last, hidden_.is_empty() ? last : shape.hidden, options.classes, "classifier.3");
  initialize_mobile(*this, norm);
  if (classifier.is_empty()) return;
  start(hidden_);
  start(classifier);
}

at::Tensor MobileNetV3::features(const at::Tensor& images) {
  check_images(name_, images);
  at::Tensor x = stem_->forward(images);
  for (auto& block : blocks_) x = block->forward(x);
  return last_->forward(x);
}

at::Tensor MobileNetV3::forward(const at::Tensor& images) {
  at::Tensor x = features(images);
  if (!has_classifier()) return x;
  x = x.mean({2, 3});
  if (!hidden_.is_empty()) x = at::hardswish(hidden_->forward(x));
  return classify(at::dropout(x, dropout_, is_training()));
}

}  // namespace palimpsest::models
