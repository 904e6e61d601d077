#include "palimpsest/train/ema.h"

#include "palimpsest/train/common/require.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace palimpsest::train {

void check_ema_decay(double decay) {
  require(decay >= 0 && decay < 1,
          fmt::format("ema_decay must be in (0, 1), or 0 for no average, got {}", decay));
}

Average::Average(const torch::nn::Module& module, double decay) : decay_(decay) {
  require(decay > 0 && decay < 1, fmt::format("the decay of an average must be in (0, 1), got {}", decay));
  for (const auto& [name, tensor] : nn::state_dict(module)) {
    if (!tensor.is_floating_point()) continue;
    values_.push_back(tensor.detach());
    averages_.emplace_back(name, tensor.detach().clone());
  }
}

void Average::update(int64_t step) {
  const at::NoGradGuard no_grad;
  const auto s = static_cast<double>(step);
  const double decay = std::min(decay_, (1 + s) / (10 + s));
  std::vector<at::Tensor> averages;
  averages.reserve(averages_.size());
  for (const auto& [name, average] : averages_) averages.push_back(average);
  at::_foreach_lerp_(averages, values_, 1 - decay);  // a GPU takes one launch for many tensors
}

void Average::exchange() {
  const at::NoGradGuard no_grad;
  // A tensor with two names is exchanged twice: the way back must be the reverse.
  const bool back = std::exchange(exchanged_, !exchanged_);
  for (std::size_t k = 0; k < values_.size(); ++k) {
    const std::size_t i = back ? values_.size() - 1 - k : k;
    const at::Tensor value = values_[i].clone();
    values_[i].copy_(averages_[i].second);
    averages_[i].second.copy_(value);
  }
}

}  // namespace palimpsest::train
