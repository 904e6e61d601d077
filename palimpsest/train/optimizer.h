#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <string>
#include <vector>

namespace palimpsest::train {

struct OptimizerOptions {
  std::string kind = "sgd";    ///< or "adamw"
  double lr = 0.01;            ///< base rate; the schedule sets the rate of each step (train/schedule.h)
  double momentum = 0.9;       ///< sgd: in [0, 1)
  double weight_decay = 1e-4;  ///< sgd: times the parameter, added to its gradient; adamw: decoupled
  bool nesterov = false;       ///< sgd: needs momentum > 0
  double beta1 = 0.9;          ///< adamw: of the mean of the gradients, in [0, 1)
  double beta2 = 0.999;        ///< adamw: of the mean of their squares, in [0, 1)
  double eps = 1e-8;           ///< adamw: added to the root of that mean, above 0
  bool decay_norm = true;      ///< false: no weight decay on weights and biases of normalization layers
  bool decay_bias = true;      ///< false: no weight decay on parameters named "bias" of other layers
  /// "LAYER=FACTOR": the learning rate of the parameters in LAYER ("head.red_bn", or one parameter's name) is
  /// FACTOR > 0 times that of the step. Of several layers that hold a parameter, the longest name counts.
  std::vector<std::string> lr_factors = {};
  double clip_norm =
      0;  ///< bound of the norm of all gradients (train/clip.h); 0: none. The trainer reads it.
};

/// An optimizer, and the factor of the learning rate of each of its groups.
struct GroupedOptimizer {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<double> lr_factors;

  /// Sets the learning rate of every group to `lr` times its factor.
  void set_learning_rate(double lr) const;
};

/// Makes the optimizer of the parameters of `model` that require a gradient: torch::optim::SGD or
/// torch::optim::AdamW. Parameters with the same factor and weight decay make one group. On a GPU the
/// optimizer's step() launches kernels for lists of parameters, with the same results up to rounding and the
/// same state.
///   sgd    g <- gradient + weight_decay * p;  v <- momentum * v + g (the first time v = g)
///          p <- p - lr * (nesterov ? g + momentum * v : v)
///   adamw  p <- p - lr * weight_decay * p;  m <- beta1 * m + (1 - beta1) * g;  v <- beta2 * v + (1 - beta2) * g^2
///          p <- p - lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps), at the update number t
/// A parameter that two modules share is updated once per step. Throws Error(kUsage) for an unknown kind and
/// a layer that the model lacks (with the nearest name), a value out of range, nesterov without momentum or
/// with adamw, a factor of layers that are all frozen, and for a model without parameters that require a
/// gradient.
/// Source of adamw: Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
GroupedOptimizer make_optimizer(const torch::nn::Module& model, const OptimizerOptions& options);
/// Does the same for kind sgd and returns the optimizer alone.
torch::optim::SGD make_sgd(const torch::nn::Module& model, const OptimizerOptions& options);

/// Returns "sgd" and "adamw".
std::vector<std::string> optimizer_names();
/// Throws Error(kUsage) as make_optimizer does for what needs no model.
void check_optimizer(const OptimizerOptions& options);

/// Returns whether `module` itself (not its children) is a normalization layer: a LayerNorm, or a module with
/// a `weight` of one value per channel, such as batch, group and instance normalization and ours. PReLU has
/// such a weight and is no normalization layer. The bias of a convolution is a vector too, but belongs to no
/// normalization layer.
bool is_normalization(const torch::nn::Module& module);

}  // namespace palimpsest::train
