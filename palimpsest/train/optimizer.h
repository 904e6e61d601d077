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

/// SGD over `model`'s parameters in two groups: decayed, and (unless decay_norm) those of normalization
/// layers.
///   g <- gradient + weight_decay * p;  v <- momentum * v + g (v = g the first time)
///   p <- p - lr * (nesterov ? g + momentum * v : v)
/// A parameter that two modules share is updated once. Throws Error(kUsage) for a value out of range, for
/// nesterov without momentum, and for a model with no parameters.
torch::optim::SGD make_sgd(const torch::nn::Module& model, const OptimizerOptions& options);

/// Whether `module` itself (not its children) normalizes: its own `weight` has one value a channel, as in
/// batch, group and instance normalization and in ours (PReLU, which has such a weight, too, does not), or it
/// is a LayerNorm. So a convolution's bias, a vector as well, is no parameter of a normalization.
bool is_normalization(const torch::nn::Module& module);

/// Sets the learning rate of every group.
void set_learning_rate(torch::optim::SGD& optimizer, double lr);

}  // namespace palimpsest::train
