#pragma once

#include "palimpsest/nn/cloneable.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>

/// What our modules that stand for a layer of libtorch have in common.
namespace palimpsest::nn {

/// Returns the parameter, or nothing if it is undefined: operators take optional tensors.
inline std::optional<at::Tensor> or_none(const at::Tensor& parameter) {
  return parameter.defined() ? std::optional<at::Tensor>(parameter) : std::nullopt;
}

/// Returns a deep copy of a layer whose tensors are `weight` and `bias`. Throws as Clones::clone.
template <class Layer>
std::shared_ptr<torch::nn::Module> clone_layer(const Layer& layer, const std::optional<at::Device>& device) {
  return Clones::clone(
      layer, device, [&] { return std::make_shared<Layer>(layer); },
      [](torch::nn::Module& copy, Clones& clones) {
        auto& members = dynamic_cast<Layer&>(copy);
        clones(members.weight, members.bias);
      });
}

/// Prints the layer as its base class in libtorch does, "torch::nn::Name(...)", with our namespace.
template <class Base>
void print_as_ours(const Base& layer, std::ostream& stream) {
  std::ostringstream text;
  layer.Base::pretty_print(text);
  stream << "palimpsest" << text.str().substr(std::string("torch").size());
}

}  // namespace palimpsest::nn
