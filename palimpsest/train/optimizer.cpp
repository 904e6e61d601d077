#include "palimpsest/train/optimizer.h"

#include "palimpsest/base/nearest_name.h"
#include "palimpsest/train/common/foreach_optimizers.h"
#include "palimpsest/train/common/parameter_groups.h"
#include "palimpsest/train/common/require.h"

#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace palimpsest::train {
namespace {

torch::optim::SGDOptions sgd_options(const OptimizerOptions& o, const ParameterGroup& group) {
  return torch::optim::SGDOptions(o.lr * group.lr_factor)
      .momentum(o.momentum)
      .weight_decay(group.decays ? o.weight_decay : 0)
      .nesterov(o.nesterov);
}

torch::optim::AdamWOptions adamw_options(const OptimizerOptions& o, const ParameterGroup& group) {
  return torch::optim::AdamWOptions(o.lr * group.lr_factor)
      .betas(std::make_tuple(o.beta1, o.beta2))
      .eps(o.eps)
      .weight_decay(group.decays ? o.weight_decay : 0);
}

template <class Options>
std::vector<torch::optim::OptimizerParamGroup> with_options(std::vector<ParameterGroup> groups,
                                                            const OptimizerOptions& o,
                                                            Options (*options_of)(const OptimizerOptions&,
                                                                                  const ParameterGroup&)) {
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (ParameterGroup& group : groups) {
    auto options = std::make_unique<Options>(options_of(o, group));
    result.emplace_back(std::move(group.parameters), std::move(options));
  }
  return result;
}

}  // namespace

std::vector<std::string> optimizer_names() {
  return {"sgd", "adamw"};
}

void check_optimizer(const OptimizerOptions& options) {
  const auto in_unit = [](const char* name, double value) {
    require(value >= 0 && value < 1, fmt::format("{} must be in [0, 1), got {}", name, value));
  };
  const auto not_negative = [](const char* name, double value) {
    require(std::isfinite(value) && value >= 0, fmt::format("{} must be at least 0, got {}", name, value));
  };
  const auto names = optimizer_names();
  require(std::find(names.begin(), names.end(), options.kind) != names.end(),
          unknown_name_message("optimizer", options.kind, names));
  not_negative("lr", options.lr);
  in_unit("momentum", options.momentum);
  not_negative("weight_decay", options.weight_decay);
  in_unit("beta1", options.beta1);
  in_unit("beta2", options.beta2);
  require(std::isfinite(options.eps) && options.eps > 0,
          fmt::format("eps must be above 0, got {}", options.eps));
  not_negative("clip_norm", options.clip_norm);
  require(!options.nesterov || options.kind == "sgd",
          fmt::format("nesterov needs kind sgd, got {}", options.kind));
  require(!options.nesterov || options.momentum > 0,
          "nesterov needs momentum > 0, got momentum 0: set momentum (0.9 is usual) or leave nesterov out");
}

bool is_normalization(const torch::nn::Module& module) {
  if (dynamic_cast<const torch::nn::LayerNormImpl*>(&module) != nullptr) return true;
  if (dynamic_cast<const torch::nn::PReLUImpl*>(&module) != nullptr) return false;
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* weight = parameters.find("weight");
  return weight != nullptr && weight->defined() && weight->dim() == 1;
}

torch::optim::SGD make_sgd(const torch::nn::Module& model, const OptimizerOptions& options) {
  check_optimizer(options);
  require(options.kind == "sgd", fmt::format("make_sgd needs kind sgd, got {}", options.kind));
  return torch::optim::SGD(with_options(parameter_groups(model, options), options, sgd_options),
                           sgd_options(options, {}));
}

GroupedOptimizer make_optimizer(const torch::nn::Module& model, const OptimizerOptions& options) {
  check_optimizer(options);
  auto groups = parameter_groups(model, options);
  GroupedOptimizer result;
  for (const ParameterGroup& group : groups) result.lr_factors.push_back(group.lr_factor);
  if (options.kind == "sgd") {
    result.optimizer = std::make_unique<ForeachOptimizer<torch::optim::SGD>>(
        with_options(std::move(groups), options, sgd_options), sgd_options(options, {}));
  } else {
    result.optimizer = std::make_unique<ForeachOptimizer<torch::optim::AdamW>>(
        with_options(std::move(groups), options, adamw_options), adamw_options(options, {}));
  }
  return result;
}

void GroupedOptimizer::set_learning_rate(double lr) const {
  auto& groups = optimizer->param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(lr * lr_factors[i]);
}

}  // namespace palimpsest::train
