#include "palimpsest/nn/linear.h"

#include "palimpsest/nn/cloneable.h"
#include "palimpsest/ops/linear.h"

#include <sstream>
#include <string>

namespace palimpsest::nn {

LinearImpl::LinearImpl(int64_t in_features, int64_t out_features)
    : LinearImpl(torch::nn::LinearOptions(in_features, out_features)) {}

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options) : torch::nn::LinearImpl(options) {}

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  return ops::linear(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt);
}

std::shared_ptr<torch::nn::Module> LinearImpl::clone(const std::optional<at::Device>& device) const {
  return Clones::clone(
      *this, device, [this] { return std::make_shared<LinearImpl>(*this); },
      [](torch::nn::Module& copy, Clones& clones) {
        auto& layer = dynamic_cast<LinearImpl&>(copy);
        clones(layer.weight, layer.bias);
      });
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  std::ostringstream text;
  torch::nn::LinearImpl::pretty_print(text);
  stream << "palimpsest" << text.str().substr(std::string("torch").size());
}

}  // namespace palimpsest::nn
