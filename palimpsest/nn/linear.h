#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>

namespace palimpsest::nn {

/// A torch::nn::Linear, with its options, parameters and state-dict keys (weight, bias). Under autocast it
/// saves no 16-bit copy of the weight for backward (ops::linear). Maps (..., in_features) to
/// (..., out_features).
class LinearImpl : public torch::nn::LinearImpl {
 public:
  LinearImpl(int64_t in_features, int64_t out_features);
  /* implicit */ LinearImpl(const torch::nn::LinearOptions& options);

  /// libtorch's forward is not virtual: a call through torch::nn::LinearImpl& runs libtorch's.
  // NOLINTNEXTLINE(bugprone-derived-method-shadowing-base-method)
  at::Tensor forward(const at::Tensor& x);
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;
};

TORCH_MODULE(Linear);

}  // namespace palimpsest::nn
