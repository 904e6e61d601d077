#pragma once

#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

namespace palimpsest::train {

struct OptimizerOptions {
  double lr = 0.01;            ///< base rate; the schedule sets the rate of each step (train/schedule.h)
  double momentum = 0.9;       ///< in [0, 1)
  double weight_decay = 1e-4;  ///< times the parameter, added to its gradient
  bool nesterov = false;       ///< needs momentum > 0
  bool decay_norm = true;      ///< false: no weight decay on weights and biases of normalization layers
};

/// Makes SGD over the parameters of `model`, in one group, or in two groups if decay_norm is false: the
/// second group has the parameters of normalization layers and no weight decay.
///   g <- gradient + weight_decay * p;  v <- momentum * v + g (the first time v = g)
///   p <- p - lr * (nesterov ? g + momentum * v : v)
/// A parameter that two modules share is updated once per step. Throws Error(kUsage) for a value out of
/// range, for nesterov without momentum, and for a model without parameters.
torch::optim::SGD make_sgd(const torch::nn::Module& model, const OptimizerOptions& options);

/// Returns whether `module` itself (not its children) is a normalization layer: a LayerNorm, or a module with
/// a `weight` of one value per channel, such as batch, group and instance normalization and ours. PReLU has
/// such a weight and is no normalization layer. The bias of a convolution is a vector too, but belongs to no
/// normalization layer.
bool is_normalization(const torch::nn::Module& module);

/// Sets the learning rate of every group.
void set_learning_rate(torch::optim::SGD& optimizer, double lr);

}  // namespace palimpsest::train
