#pragma once

#include "palimpsest/nn/state_dict.h"

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {

/// Returns "SGD", "Adam", "AdamW", "RMSprop" or "Adagrad". Throws Error(kUsage) for any other optimizer: its
/// state cannot be saved.
std::string optimizer_name(const torch::optim::Optimizer& optimizer);

/// Returns the state that `optimizer` holds for each parameter of `module`, as tensors named FIELD.PARAMETER:
///   SGD          momentum
///   Adam, AdamW  step, exp_avg, exp_avg_sq, max_exp_avg_sq
///   RMSprop      step, square_avg, momentum_buffer, grad_avg
///   Adagrad      step, sum
/// `step` is an i64 scalar; the other fields have the shape of the parameter, and are the optimizer's own
/// tensors, not copies. A parameter that was never updated may have no state. Throws Error(kUsage) as
/// optimizer_name does, and for an optimizer of parameters that are not in `module`.
nn::StateDict optimizer_state(const torch::optim::Optimizer& optimizer, const torch::nn::Module& module);

/// Replaces the state of an optimizer in two steps: the constructor compares, load() changes.
class OptimizerStateLoader {
 public:
  /// Notes in `diff` how `saved` differs from the state that `optimizer` needs. The entries of `saved` are
  /// named `prefix` + FIELD.PARAMETER; those of parameters of `module` that `optimizer` does not hold are
  /// ignored. `optimizer` must outlive this object. Throws as optimizer_state does.
  OptimizerStateLoader(torch::optim::Optimizer& optimizer, const torch::nn::Module& module,
                       const nn::StateDict& saved, const std::string& prefix, nn::StateDictDiff& diff);
  /// Replaces the state by copies of the saved tensors.
  void load();

 private:
  struct ParameterState {
    at::Tensor parameter;
    std::vector<std::pair<std::string, at::Tensor>> fields;
  };
  torch::optim::Optimizer& optimizer_;
  std::vector<ParameterState> states_;
};

}  // namespace palimpsest::train
