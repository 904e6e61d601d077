#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {

struct FrozenOptions {
  /// Layers and parameters that stay as they are, by name: "body.layer1" is that module with all its
  /// children. They get no gradient and no state of the optimizer. A normalization in a frozen layer also
  /// keeps its running statistics, and normalizes with them: the layer remains the same function, but for its
  /// dropout and stochastic depth, which go on.
  std::vector<std::string> layers = {};
  /// All normalizations keep their running statistics, and normalize with them. Their weights and biases are
  /// trained all the same, unless they lie in `layers`.
  bool norm = false;
};

/// Freezes parts of a network in training mode; the destructor thaws them. Make it before the optimizer
/// (train/optimizer.h) and before distributed::DataParallel, which both leave out parameters without
/// requires_grad. module.train() would thaw the normalizations.
///
/// Modules with running statistics are frozen by their eval mode: those of libtorch and of ours that have a
/// buffer `running_mean`.
class Frozen {
 public:
  /// Throws Error(kUsage) for a name that the network lacks, with the nearest one, for a name that the network
  /// has but whose parameters an earlier name freezes all, and for `norm` if the network has no running
  /// statistics.
  Frozen(torch::nn::Module& module, const FrozenOptions& options);
  ~Frozen();
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;

 private:
  std::vector<at::Tensor> parameters_;          // had requires_grad
  std::vector<torch::nn::Module*> statistics_;  // were in training mode
};

}  // namespace palimpsest::train
