#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace palimpsest::benchmarks {

/// The head of a timed graph: a scalar of z, whose backward pass gives z the prepared gradient `dz` and
/// releases it. So the layer before the head is the only owner of its incoming gradient, as it is before a
/// convolution, and no loss is timed. `dz` must be the caller's last reference. The graph allows one backward
/// pass.
class OwnedGradient : public torch::autograd::Function<OwnedGradient> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& z, at::Tensor dz) {
    ctx->saved_data["dz"] = std::move(dz);
    return at::zeros({}, z.options());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list&) {
    at::Tensor dz = std::exchange(ctx->saved_data["dz"], c10::IValue()).toTensor();
    return {std::move(dz), {}};
  }
};

}  // namespace palimpsest::benchmarks
