#include "palimpsest/train/optimizer.h"

#include "palimpsest/train/common/require.h"

#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace palimpsest::train {
namespace {

void check(const OptimizerOptions& options) {
  require(std::isfinite(options.lr) && options.lr >= 0,
          fmt::format("lr must be at least 0, got {}", options.lr));
  require(options.momentum >= 0 && options.momentum < 1,
          fmt::format("momentum must be in [0, 1), got {}", options.momentum));
  require(std::isfinite(options.weight_decay) && options.weight_decay >= 0,
          fmt::format("weight_decay must be at least 0, got {}", options.weight_decay));
  require(!options.nesterov || options.momentum > 0,
          "nesterov needs momentum > 0, got momentum 0: set momentum (0.9 is usual) or leave nesterov out");
}

}  // namespace

bool is_normalization(const torch::nn::Module& module) {
  if (dynamic_cast<const torch::nn::LayerNormImpl*>(&module) != nullptr) return true;
  if (dynamic_cast<const torch::nn::PReLUImpl*>(&module) != nullptr) return false;
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* weight = parameters.find("weight");
  return weight != nullptr && weight->defined() && weight->dim() == 1;
}

torch::optim::SGD make_sgd(const torch::nn::Module& model, const OptimizerOptions& options) {
  check(options);
  std::vector<at::Tensor> decayed, normalization;
  std::set<const void*> seen;
  model.apply([&](const torch::nn::Module& module) {
    auto& group = !options.decay_norm && is_normalization(module) ? normalization : decayed;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false))
      if (parameter.value().defined() && seen.insert(parameter.value().unsafeGetTensorImpl()).second)
        group.push_back(parameter.value());
  });
  require(!seen.empty(), "the model has no parameters: there is nothing to train");

  auto sgd = torch::optim::SGDOptions(options.lr)
                 .momentum(options.momentum)
                 .weight_decay(options.weight_decay)
                 .nesterov(options.nesterov);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decayed), std::make_unique<torch::optim::SGDOptions>(sgd));
  if (!normalization.empty()) {
    groups.emplace_back(std::move(normalization), std::make_unique<torch::optim::SGDOptions>(
                                                      torch::optim::SGDOptions(sgd).weight_decay(0)));
  }
  return torch::optim::SGD(groups, sgd);
}

void set_learning_rate(torch::optim::SGD& optimizer, double lr) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
}

}  // namespace palimpsest::train
