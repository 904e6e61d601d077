#include "palimpsest/ops/common/running_statistics.h"

namespace palimpsest::ops {
namespace {

/// Moves in f64 and rounds once, also in 16 bits, where a variance may not fit that moves less than that far.
template <class Weight>
void move(const at::Tensor& running, const at::Tensor& batch, const Weight& weight) {
  running.copy_(running.to(at::kDouble).lerp(batch, weight));
}

}  // namespace

void move_running_statistics(const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, double momentum,
                             const at::Tensor& mean, const at::Tensor& var, double m) {
  if (!running_mean) return;
  const at::NoGradGuard no_grad;
  move(*running_mean, mean, momentum);
  move(*running_var, var * (m / (m - 1)), momentum);
}

void move_running_statistics(const std::optional<at::Tensor>& running_mean,
                             const std::optional<at::Tensor>& running_var, double momentum,
                             const at::Tensor& mean, const at::Tensor& var, const at::Tensor& m) {
  if (!running_mean) return;
  const at::NoGradGuard no_grad;
  const at::Tensor weight = (m >= 2).to(at::kDouble).mul_(momentum);
  move(*running_mean, mean, weight);
  move(*running_var, var * (m / (m - 1).clamp_min_(1)), weight);
}

}  // namespace palimpsest::ops
