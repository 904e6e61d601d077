#include "palimpsest/nn/linear.h"

#include "palimpsest/nn/common/libtorch_layer.h"
#include "palimpsest/ops/linear.h"

namespace palimpsest::nn {

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features)
    : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options) : torch::nn::LinearImpl(options) {}

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  return ops::linear(x, weight, or_none(bias));
}

std::shared_ptr<torch::nn::Module> LinearImpl::clone(const std::optional<at::Device>& device) const {
  return clone_layer(*this, device);
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  print_as_ours<torch::nn::LinearImpl>(*this, stream);
}

}  // namespace palimpsest::nn
