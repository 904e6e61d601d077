#include "palimpsest/ops/common/running_statistics.h"

namespace palimpsest::ops {

void move_running_statistics(const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, double momentum,
                             const at::Tensor& mean, const at::Tensor& var, double m) {
  if (!running_mean) return;
  const at::NoGradGuard no_grad;
  running_mean->lerp_(mean.to(running_mean->scalar_type()), momentum);
  running_var->lerp_((var * (m / (m - 1))).to(running_var->scalar_type()), momentum);
}

void move_running_statistics(const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, double momentum,
                             const at::Tensor& mean, const at::Tensor& var, const at::Tensor& m) {
  if (!running_mean) return;
  const at::NoGradGuard no_grad;
  const at::Tensor weight = (m >= 2).to(at::kDouble).mul_(momentum);
  const at::Tensor unbiased = var * (m / (m - 1).clamp_min_(1));
  const auto move = [&](const at::Tensor& running, const at::Tensor& batch) {
    running.copy_(running.to(at::kDouble).lerp(batch, weight));  // one rounding, also in 16 bits
  };
  move(*running_mean, mean);
  move(*running_var, unbiased);
}

}  // namespace palimpsest::ops
