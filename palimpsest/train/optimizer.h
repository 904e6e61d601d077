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

/// Makes SGD over the parameters of `model`, in one group, or in two without decay_norm: the second group has
/// the parameters of normalization layers and no weight decay.
///   g <- gradient + weight_decay * p;  v <- momentum * v + g (the first time v = g)
///   p <- p - lr * (nesterov ? g + momentum * v : v)
/// A parameter that two modules share is updated once per step. Throws Error(kUsage) for a value out of
/// range, for nesterov without momentum, and for a model without parameters.
torch::optim::SGD make_sgd(const torch::nn::Module& model, const OptimizerOptions& options);

/// Whether `module` itself (not its children) is a normalization layer: its own `weight` has one value per
/// channel, as in batch, group and instance normalization and in ours, or it is a LayerNorm. PReLU, which has
/// such a weight, is none. So the bias of a convolution, which is a vector as well, is no parameter of a
/// normalization.
bool is_normalization(const torch::nn::Module& module);

/// Sets the learning rate of every group.
void set_learning_rate(torch::optim::SGD& optimizer, double lr);

}  // namespace palimpsest::train
