#include "palimpsest/train/clip.h"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace palimpsest::train {
namespace {

std::vector<at::Tensor> gradients_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace

double clip_gradients(torch::optim::Optimizer& optimizer, double max_norm) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(optimizer);
  if (gradients.empty()) return 0;
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients)
    norms.push_back(
        at::linalg_vector_norm(gradient, 2, at::OptionalIntArrayRef(), /*keepdim=*/false, at::kDouble));
  const double norm = at::stack(norms).norm().item<double>();
  if (std::isfinite(norm) && norm > max_norm) at::_foreach_mul_(gradients, max_norm / norm);
  return norm;
}

void scale_gradients(torch::optim::Optimizer& optimizer, double factor) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(optimizer);
  if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
}

}  // namespace palimpsest::train
