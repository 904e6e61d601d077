#pragma once

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

namespace palimpsest::train {

struct OptimizerOptions {
  double lr = 0.01;
  double momentum = 0.9;
  double weight_decay = 1e-4;
  bool nesterov = false;
  bool decay_norm = true;  ///< false: no weight decay on weights and biases of normalization layers
};

/// SGD over `model`'s parameters in two groups: decayed, and (unless decay_norm) those of normalization layers.
torch::optim::SGD make_sgd(const torch::nn::Module& model, const OptimizerOptions& options);

}  // namespace palimpsest::train
