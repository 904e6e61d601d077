#include "palimpsest/train/clip.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
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

/// Returns the norm of all gradients together, an f64 scalar; undefined without a gradient.
at::Tensor norm_of(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return {};
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients)
    norms.push_back(
        at::linalg_vector_norm(gradient, 2, at::OptionalIntArrayRef(), /*keepdim=*/false, at::kDouble));
  return at::stack(norms).norm();
}

void scale(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  std::map<at::ScalarType, std::vector<at::Tensor>> by_type;  // a kernel for a list needs one type
  for (const at::Tensor& gradient : gradients) by_type[gradient.scalar_type()].push_back(gradient);
  for (const auto& [type, of_type] : by_type) at::_foreach_mul_(of_type, factor.to(type));
}

}  // namespace

at::Tensor clip_gradients_on_device(torch::optim::Optimizer& optimizer, double max_norm) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(optimizer);
  at::Tensor norm = norm_of(gradients);
  if (!norm.defined()) return at::zeros({}, at::kDouble);
  const at::Tensor clips = norm.isfinite().logical_and_(norm > max_norm);
  scale(gradients, at::where(clips, at::full_like(norm, max_norm) / norm, at::ones_like(norm)));
  return norm;
}

double clip_gradients(torch::optim::Optimizer& optimizer, double max_norm) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(optimizer);
  const at::Tensor norm_on_device = norm_of(gradients);
  if (!norm_on_device.defined()) return 0;
  const double norm = norm_on_device.item<double>();
  if (std::isfinite(norm) && norm > max_norm) at::_foreach_mul_(gradients, max_norm / norm);
  return norm;
}

void scale_gradients(torch::optim::Optimizer& optimizer, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  scale(gradients_of(optimizer), factor);
}

}  // namespace palimpsest::train
