#include "palimpsest/train/optimizer_state.h"

#include "palimpsest/train/common/require.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>

namespace palimpsest::train {
namespace {

using torch::optim::Optimizer;

// The state that each optimizer keeps per parameter. each() calls visit(name, value) for its fields. needs()
// returns whether a step reads a field. kFromTheStart is true if a step fails without a state.

struct SgdFields {
  using State = torch::optim::SGDParamState;
  using Options = torch::optim::SGDOptions;
  static constexpr bool kFromTheStart = false;
  static void each(auto& state, const auto& visit) { visit("momentum", state.momentum_buffer()); }
  static bool needs(const Options&, std::string_view) { return false; }
};

template <class AdamState, class AdamOptions>
struct AdamFields {
  using State = AdamState;
  using Options = AdamOptions;
  static constexpr bool kFromTheStart = false;
  static void each(auto& state, const auto& visit) {
    visit("step", state.step());
    visit("exp_avg", state.exp_avg());
    visit("exp_avg_sq", state.exp_avg_sq());
    visit("max_exp_avg_sq", state.max_exp_avg_sq());
  }
  static bool needs(const Options& options, std::string_view field) {
    return field != "max_exp_avg_sq" || options.amsgrad();
  }
};

struct RmspropFields {
  using State = torch::optim::RMSpropParamState;
  using Options = torch::optim::RMSpropOptions;
  static constexpr bool kFromTheStart = false;
  static void each(auto& state, const auto& visit) {
    visit("step", state.step());
    visit("square_avg", state.square_avg());
    visit("momentum_buffer", state.momentum_buffer());
    visit("grad_avg", state.grad_avg());
  }
  static bool needs(const Options& options, std::string_view field) {
    if (field == "momentum_buffer") return options.momentum() > 0;
    return field != "grad_avg" || options.centered();
  }
};

struct AdagradFields {
  using State = torch::optim::AdagradParamState;
  using Options = torch::optim::AdagradOptions;
  static constexpr bool kFromTheStart = true;  // the optimizer's constructor makes it
  static void each(auto& state, const auto& visit) {
    visit("step", state.step());
    visit("sum", state.sum());
  }
  static bool needs(const Options&, std::string_view) { return true; }
};

template <class Fields>
struct Named {
  using Type = Fields;
  const char* name;
};

/// Calls action(Named<Fields>) for the kind of `optimizer`.
template <class Action>
auto dispatch(const Optimizer& optimizer, const Action& action) {
  using namespace torch::optim;
  if (dynamic_cast<const SGD*>(&optimizer)) return action(Named<SgdFields>{"SGD"});
  if (dynamic_cast<const Adam*>(&optimizer))
    return action(Named<AdamFields<AdamParamState, AdamOptions>>{"Adam"});
  if (dynamic_cast<const AdamW*>(&optimizer))
    return action(Named<AdamFields<AdamWParamState, AdamWOptions>>{"AdamW"});
  if (dynamic_cast<const RMSprop*>(&optimizer)) return action(Named<RmspropFields>{"RMSprop"});
  if (dynamic_cast<const Adagrad*>(&optimizer)) return action(Named<AdagradFields>{"Adagrad"});
  throw Error(ErrorKind::kUsage,
              "a checkpoint needs an optimizer of libtorch that is SGD, Adam, AdamW, RMSprop or Adagrad, got "
              "another one, whose state cannot be saved: save the model alone, with io::write_safetensors of "
              "nn::state_dict");
}

/// Returns the parameters of the optimizer with the options of their group.
std::unordered_map<const void*, const torch::optim::OptimizerOptions*> options_by_parameter(
    const Optimizer& optimizer) {
  std::unordered_map<const void*, const torch::optim::OptimizerOptions*> options;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) options[parameter.unsafeGetTensorImpl()] = &group.options();
  return options;
}

/// Returns the tensors of `module` that `optimizer` updates, by name.
nn::StateDict updated_parameters(const Optimizer& optimizer, const torch::nn::Module& module) {
  const auto options = options_by_parameter(optimizer);
  nn::StateDict parameters;
  std::set<const void*> found;
  for (auto& entry : nn::state_dict(module)) {
    if (!options.contains(entry.second.unsafeGetTensorImpl())) continue;
    found.insert(entry.second.unsafeGetTensorImpl());
    parameters.push_back(std::move(entry));
  }
  require(found.size() == options.size(),
          fmt::format("a checkpoint needs a module that holds all parameters of the optimizer, got {} of {}: "
                      "give a module that contains all of them",
                      found.size(), options.size()));
  return parameters;
}

at::Tensor as_tensor(int64_t value) {
  return at::scalar_tensor(value, at::kLong);
}
at::Tensor as_tensor(const at::Tensor& value) {
  return value;
}

void copy_to(int64_t& field, const at::Tensor& source, const at::Tensor&) {
  field = source.item<int64_t>();
}
void copy_to(at::Tensor& field, const at::Tensor& source, const at::Tensor& parameter) {
  field = at::empty_like(parameter.detach()).copy_(source);
}

/// Returns a tensor with the shape and dtype that the saved field must have.
at::Tensor example_of(int64_t, const at::Tensor&) {
  return as_tensor(int64_t{0});
}
at::Tensor example_of(const at::Tensor&, const at::Tensor& parameter) {
  return parameter;
}

}  // namespace

std::string optimizer_name(const Optimizer& optimizer) {
  return dispatch(optimizer, [](auto named) { return std::string(named.name); });
}

nn::StateDict optimizer_state(const Optimizer& optimizer, const torch::nn::Module& module) {
  const auto parameters = updated_parameters(optimizer, module);
  return dispatch(optimizer, [&](auto named) {
    using Fields = typename decltype(named)::Type;
    nn::StateDict dict;
    for (const auto& [name, parameter] : parameters) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      const auto& state = static_cast<const typename Fields::State&>(*found->second);
      Fields::each(state, [&](const char* field, const auto& value) {
        at::Tensor tensor = as_tensor(value);
        if (tensor.defined()) dict.emplace_back(fmt::format("{}.{}", field, name), std::move(tensor));
      });
    }
    return dict;
  });
}

OptimizerStateLoader::OptimizerStateLoader(Optimizer& optimizer, const torch::nn::Module& module,
                                           const nn::StateDict& saved, const std::string& prefix,
                                           nn::StateDictDiff& diff)
    : optimizer_(optimizer) {
  std::map<std::string, at::Tensor> unclaimed(saved.begin(), saved.end());
  const auto parameters = updated_parameters(optimizer, module);
  const auto options = options_by_parameter(optimizer);
  dispatch(optimizer, [&](auto named) {
    using Fields = typename decltype(named)::Type;
    for (const auto& [parameter_name, parameter] : parameters) {
      const auto& group =
          static_cast<const typename Fields::Options&>(*options.at(parameter.unsafeGetTensorImpl()));
      ParameterState state{parameter, {}};
      std::vector<std::string> missing;
      typename Fields::State wanted;
      Fields::each(wanted, [&](const char* field, const auto& value) {
        const std::string name = fmt::format("{}{}.{}", prefix, field, parameter_name);
        const auto found = unclaimed.find(name);
        if (found == unclaimed.end()) {
          if (Fields::needs(group, field)) missing.push_back(name);
          return;
        }
        if (diff.matches(name, found->second, example_of(value, parameter), /*same_dtype=*/true))
          state.fields.emplace_back(field, found->second);
        unclaimed.erase(found);
      });
      if (!state.fields.empty() || Fields::kFromTheStart)
        diff.missing.insert(diff.missing.end(), missing.begin(), missing.end());
      if (!state.fields.empty()) states_.push_back(std::move(state));
    }
    for (const auto& [parameter_name, parameter] : nn::state_dict(module)) {
      if (options.contains(parameter.unsafeGetTensorImpl())) continue;
      typename Fields::State unused;
      Fields::each(unused, [&](const char* field, const auto&) {
        unclaimed.erase(fmt::format("{}{}.{}", prefix, field, parameter_name));
      });
    }
  });
  for (const auto& [name, tensor] : unclaimed) diff.unexpected.push_back(name);
}

void OptimizerStateLoader::load() {
  const at::NoGradGuard no_grad;
  optimizer_.state().clear();
  dispatch(optimizer_, [&](auto named) {
    using Fields = typename decltype(named)::Type;
    for (const auto& [parameter, saved] : states_) {
      auto state = std::make_unique<typename Fields::State>();
      Fields::each(*state, [&](const std::string& field, auto& value) {
        for (const auto& [name, source] : saved)
          if (name == field) copy_to(value, source, parameter);
      });
      optimizer_.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  });
}

}  // namespace palimpsest::train
