#include "palimpsest/train/common/foreach_optimizers.h"

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

namespace palimpsest::train {
namespace {

/// What an update reads and writes, parameter by parameter. `data` has no gradient and no version that a
/// graph checks.
struct ParameterList {
  std::vector<at::Tensor> data, gradients;
  std::vector<at::Tensor> first, second;  ///< of the state: SGD's momentum; AdamW's two averages
};

/// Calls `update` for consecutive parts of `all` with at most kListValues values, or one parameter.
template <class Update>
void in_parts(const ParameterList& all, const Update& update) {
  for (std::size_t begin = 0; begin < all.data.size();) {
    ParameterList part;
    int64_t values = 0;
    do {
      values += all.data[begin].numel();
      part.data.push_back(all.data[begin]);
      part.gradients.push_back(all.gradients[begin]);
      if (!all.first.empty()) part.first.push_back(all.first[begin]);
      if (!all.second.empty()) part.second.push_back(all.second[begin]);
      ++begin;
    } while (begin < all.data.size() && values + all.data[begin].numel() <= kListValues);
    update(part);
  }
}

template <class State>
State* state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

template <class State>
State& new_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto state = std::make_unique<State>();
  State& result = *state;
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  return result;
}

/// Returns whether foreach_step can take the place of libtorch's own step, and is the faster one.
bool suits_lists(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.is_cpu() || (parameter.grad().defined() && parameter.grad().is_sparse())) return false;
  return true;
}

}  // namespace

void foreach_step(torch::optim::SGD& optimizer) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
    const double momentum = options.momentum();
    ParameterList fresh, going_on;  // fresh: without momentum yet, or for ever
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto* const state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
      ParameterList& list = momentum != 0 && state != nullptr ? going_on : fresh;
      list.data.push_back(parameter.data());
      list.gradients.push_back(parameter.grad().data());
      if (momentum == 0) continue;
      if (&list == &going_on) {
        list.first.push_back(state->momentum_buffer());
      } else {
        list.first.push_back(at::empty_like(parameter.grad()).detach());
        new_state<torch::optim::SGDParamState>(optimizer, parameter).momentum_buffer(list.first.back());
      }
    }
    const auto update = [&](const ParameterList& list, bool begins) {
      std::vector<at::Tensor> d = list.gradients;
      if (options.weight_decay() != 0) d = at::_foreach_add(d, list.data, options.weight_decay());
      if (momentum != 0) {
        if (begins) {
          at::_foreach_copy_(list.first, d);
        } else {
          at::_foreach_mul_(list.first, momentum);
          at::_foreach_add_(list.first, d, 1 - options.dampening());
        }
        d = options.nesterov() ? at::_foreach_add(d, list.first, momentum) : list.first;
      }
      at::_foreach_add_(list.data, d, -options.lr());
    };
    in_parts(fresh, [&](const ParameterList& list) { update(list, true); });
    in_parts(going_on, [&](const ParameterList& list) { update(list, false); });
  }
}

void foreach_step(torch::optim::AdamW& optimizer) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    std::map<int64_t, ParameterList> lists;  // by the number of the update, which decides the corrections
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto* state = state_of<torch::optim::AdamWParamState>(optimizer, parameter);
      if (state == nullptr) {
        state = &new_state<torch::optim::AdamWParamState>(optimizer, parameter);
        state->step(0);
        state->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
        state->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
      }
      state->step(state->step() + 1);
      ParameterList& list = lists[state->step()];
      list.data.push_back(parameter.data());
      list.gradients.push_back(parameter.grad().data());
      list.first.push_back(state->exp_avg());
      list.second.push_back(state->exp_avg_sq());
    }
    for (const auto& [step, all] : lists) {
      const auto t = static_cast<double>(step);
      const double correction1 = 1 - std::pow(beta1, t), correction2 = 1 - std::pow(beta2, t);
      in_parts(all, [&](const ParameterList& list) {
        if (options.weight_decay() != 0)
          at::_foreach_mul_(list.data, 1 - options.lr() * options.weight_decay());
        at::_foreach_mul_(list.first, beta1);
        at::_foreach_add_(list.first, list.gradients, 1 - beta1);
        at::_foreach_mul_(list.second, beta2);
        at::_foreach_addcmul_(list.second, list.gradients, list.gradients, 1 - beta2);
        const std::vector<at::Tensor> divisors = at::_foreach_sqrt(list.second);
        at::_foreach_div_(divisors, std::sqrt(correction2));
        at::_foreach_add_(divisors, options.eps());
        at::_foreach_addcdiv_(list.data, list.first, divisors, -options.lr() / correction1);
      });
    }
  }
}

template <class Optimizer>
at::Tensor ForeachOptimizer<Optimizer>::step(LossClosure closure) {
  if (closure || !suits_lists(*this)) return Optimizer::step(std::move(closure));
  foreach_step(static_cast<Optimizer&>(*this));
  return {};
}

template class ForeachOptimizer<torch::optim::SGD>;
template class ForeachOptimizer<torch::optim::AdamW>;

}  // namespace palimpsest::train
