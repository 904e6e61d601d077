#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

// torch::nn::Module has no public way to replace a buffer or to define an undefined parameter, and its
// dictionaries are private. Its friends are the specializations of torch::nn::Cloneable; this class is one.
namespace palimpsest::nn {
struct ModuleAccess;
}

template <>
class torch::nn::Cloneable<palimpsest::nn::ModuleAccess> {
 public:
  static OrderedDict<std::string, at::Tensor>& parameters(Module& module) { return module.parameters_; }
  static OrderedDict<std::string, at::Tensor>& buffers(Module& module) { return module.buffers_; }
  static const OrderedDict<std::string, at::Tensor>& parameters(const Module& module) {
    return module.parameters_;
  }
  static const OrderedDict<std::string, at::Tensor>& buffers(const Module& module) { return module.buffers_; }
  static OrderedDict<std::string, std::shared_ptr<Module>>& children(Module& module) {
    return module.children_;
  }
  static const OrderedDict<std::string, std::shared_ptr<Module>>& children(const Module& module) {
    return module.children_;
  }
};

namespace palimpsest::nn {

/// Gives access to the dictionaries of a module: parameters and buffers (undefined ones included), children.
struct ModuleAccess : torch::nn::Cloneable<ModuleAccess> {};

}  // namespace palimpsest::nn
