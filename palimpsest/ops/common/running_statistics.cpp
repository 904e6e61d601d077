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

}  // namespace palimpsest::ops
