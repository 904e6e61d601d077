#include "palimpsest/amp/master_weights.h"

#include "palimpsest/base/error.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace palimpsest::amp {

MasterWeights::MasterWeights(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    throw Error(ErrorKind::kUsage,
                fmt::format("[MasterWeights] dtype must be f16 or bf16, got {}", c10::toString(dtype)));
  for (const at::Tensor& parameter : parameters) {
    if (parameter.dim() < 2 || parameter.scalar_type() != at::kFloat) {
      parameters_.push_back(parameter);
      continue;
    }
    at::Tensor master = parameter.detach().clone().set_requires_grad(parameter.requires_grad());
    parameter.set_data(master.detach().to(dtype));
    parameters_.push_back(master);
    pairs_.emplace_back(parameter, master);
  }
}

void MasterWeights::collect_gradients() const {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, master] : pairs_) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    at::Tensor& sum = master.mutable_grad();
    sum = sum.defined() ? sum.add_(gradient) : gradient.to(at::kFloat);
    gradient.reset();
  }
}

void MasterWeights::publish() const {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, master] : pairs_) parameter.copy_(master);
}

}  // namespace palimpsest::amp
