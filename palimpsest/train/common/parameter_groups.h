#pragma once

#include "palimpsest/train/optimizer.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::train {

/// Parameters that an optimizer updates alike.
struct ParameterGroup {
  std::vector<at::Tensor> parameters;
  double lr_factor = 1;
  bool decays = true;
};

/// An entry of OptimizerOptions::lr_factors.
struct LayerFactor {
  std::string layer;
  double factor = 1;
};
/// Throws Error(kUsage) unless the text is LAYER=FACTOR with a finite FACTOR > 0.
LayerFactor parse_layer_factor(std::string_view text);

/// Returns the parameters of `model` that require a gradient, in the groups that `options` ask for: those with
/// weight decay come first, then smaller factors. Throws as make_optimizer does.
std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& model, const OptimizerOptions& options);

}  // namespace palimpsest::train
