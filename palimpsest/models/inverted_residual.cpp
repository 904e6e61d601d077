#include "palimpsest/models/inverted_residual.h"

#include "palimpsest/models/common/convolution.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <string>
#include <utility>

namespace palimpsest::models {

ConvNormAct::ConvNormAct(const nn::Conv2d& conv_, const nn::BatchNormActOptions& norm_,
                         const std::string& conv_name, const std::string& norm_name)
    : conv(register_module(conv_name, conv_)), norm(register_module(norm_name, nn::BatchNormAct(norm_))) {}

at::Tensor ConvNormAct::forward(const at::Tensor& x) {
  return norm->forward(conv->forward(x));
}

nn::BatchNormActOptions norm_of(int64_t channels, const nn::NormOptions& norm,
                                const NormConstants& constants) {
  return nn::BatchNormActOptions(channels, norm).eps(constants.eps).momentum(constants.momentum);
}

InvertedResidual::InvertedResidual(const InvertedResidualOptions& o)
    : input_(o.input),
      has_shortcut_(o.stride == 1 && o.in == o.out),
      stochastic_depth_(has_shortcut_ ? o.stochastic_depth : 0),
      block_(register_module("block", std::make_shared<torch::nn::Module>("block"))) {
  int parts = 0;
  const auto add = [&]<class Part>(const Part& part) {
    return block_->register_module(std::to_string(parts++), part);
  };
  const auto make = [&](const SquareConvolution& shape, const nn::NormOptions& norm) {
    return add(std::make_shared<ConvNormAct>(conv(shape, o.norm), norm_of(shape.out, norm, o.constants)));
  };
  if (o.expanded != o.in) expand_ = make({.in = o.in, .out = o.expanded}, o.norm);
  // The gates have two readers of z, the means and the product, so a strategy that saves y leaves act to them.
  if (o.squeeze) squeezed_ = nn::DeferredActivation::of_blocks(o.norm);
  depthwise_ = make({.in = o.expanded,
                     .out = o.expanded,
                     .kernel = o.kernel,
                     .stride = o.stride,
                     .dilation = o.dilation,
                     .groups = o.expanded},
                    squeezed_.is_deferred ? o.norm.identity() : o.norm);
  if (o.squeeze) {
    nn::SqueezeExcitationOptions squeeze = *o.squeeze;
    squeeze.channels = o.expanded;
    squeeze_ = add(nn::SqueezeExcitation(squeeze));
  }
  project_ = make({.in = o.expanded, .out = o.out}, o.norm.identity());
}

at::Tensor InvertedResidual::project(const at::Tensor& expanded) {
  auto& norm = depthwise_->norm;
  if (squeeze_.is_empty()) return norm->forward_into(expanded, project_->conv);
  const at::Tensor t = norm->forward(expanded);
  if (norm->options.strategy() == nn::Strategy::kStandard)
    return project_->conv->forward(squeeze_->forward(squeezed_.apply(t)));
  return squeeze_->forward_into(t, squeezed_, *project_->conv);
}

at::Tensor InvertedResidual::add_shortcut(at::Tensor h, const at::Tensor& x) {
  auto& norm = project_->norm;
  if (!has_shortcut_) return norm->forward(std::move(h));
  if (!is_training() || stochastic_depth_ == 0) return norm->forward_residual(std::move(h), x, input_);
  const double survival = 1 - stochastic_depth_;
  at::Tensor share = at::empty({h.size(0), 1, 1, 1}, h.options()).bernoulli_(survival);
  if (survival > 0) share.div_(survival);
  return at::addcmul(input_.apply(x), norm->forward(std::move(h)), share);
}

at::Tensor InvertedResidual::forward(const at::Tensor& x) {
  if (!expand_) return add_shortcut(project(input_.forward_into(x, *depthwise_->conv)), x);
  at::Tensor h = input_.forward_into(x, *expand_->conv);
  return add_shortcut(project(expand_->norm->forward_into(std::move(h), depthwise_->conv)), x);
}

void initialize_mobile(torch::nn::Module& module, const nn::NormOptions& norm) {
  initialize_convolutions(module, norm);
  const at::NoGradGuard no_grad;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    const auto* squeeze = child->as<nn::SqueezeExcitation>();
    if (!squeeze) continue;
    for (const auto& layer : {squeeze->fc1, squeeze->fc2}) {
      at::Tensor(layer->weight).normal_(0, std::sqrt(2.0 / static_cast<double>(layer->weight.size(0))));
      at::Tensor(layer->bias).zero_();
    }
  }
}

}  // namespace palimpsest::models
