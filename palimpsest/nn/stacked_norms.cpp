#include "palimpsest/nn/stacked_norms.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace palimpsest::nn {
namespace {

/// Returns the vectors of all layers as one; std::nullopt where the layers have none.
std::optional<at::Tensor> joined(const std::vector<BatchNormAct>& norms,
                                 at::Tensor BatchNormActImpl::* member) {
  std::vector<at::Tensor> all;
  all.reserve(norms.size());
  for (const auto& norm : norms) all.push_back((*norm).*member);
  if (!all.front().defined()) return std::nullopt;
  return at::cat(all);
}

/// Copies the layers' parts of a joined vector back.
void split(const std::optional<at::Tensor>& vector, std::vector<BatchNormAct>& norms,
           at::Tensor BatchNormActImpl::* member) {
  if (!vector) return;
  int64_t first = 0;
  for (auto& norm : norms) {
    at::Tensor& part = (*norm).*member;
    part.copy_(vector->narrow(0, first, part.size(0)));
    first += part.size(0);
  }
}

/// Returns whether one operator can run all layers.
bool joins(const at::Tensor& first_part, const std::vector<BatchNormAct>& norms) {
  const auto& first = *norms.front();
  if (first_part.numel() == 0 && !first.shares_statistics()) return false;
  return std::all_of(norms.begin(), norms.end(), [&](const auto& norm) {
    return norm->fits_operator() && norm->is_training() == first.is_training() &&
           norm->options.strategy() == first.options.strategy();
  });
}

}  // namespace

at::Tensor forward_stacked(std::vector<at::Tensor> parts, std::vector<BatchNormAct>& norms) {
  if (!joins(parts.front(), norms)) {
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = norms[i]->forward(std::move(parts[i]));
    return at::cat(parts, 1);
  }
  at::Tensor stack = at::cat(parts, 1);
  parts.clear();  // frees the parts before the normalization of the stack begins
  ops::AbnOptions layer = norms.front()->begin_operator();
  for (std::size_t i = 1; i < norms.size(); ++i) norms[i]->begin_operator();  // counts the batch
  layer.saved = ops::saved_for(layer, stack.scalar_type());
  const ops::NormalizationTensors vectors{
      joined(norms, &BatchNormActImpl::weight), joined(norms, &BatchNormActImpl::bias),
      joined(norms, &BatchNormActImpl::running_mean), joined(norms, &BatchNormActImpl::running_var)};
  at::Tensor z = layer.saved == ops::Saved::kInput ? ops::abn(stack, vectors, layer)
                                                   : ops::abn_(std::move(stack), vectors, layer);
  if (layer.training) {
    const at::NoGradGuard no_grad;
    split(vectors.running_mean, norms, &BatchNormActImpl::running_mean);
    split(vectors.running_var, norms, &BatchNormActImpl::running_var);
  }
  return z;
}

}  // namespace palimpsest::nn
