#include "palimpsest/nn/cloneable.h"

#include "palimpsest/nn/common/module_access.h"

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstddef>
#include <typeinfo>

namespace palimpsest::nn {
namespace {

/// Repairs the copies of torch::nn::Cloneable, which forget requires_grad.
void copy_requires_grad(const torch::nn::Module& from, const torch::nn::Module& to) {
  const auto originals = from.parameters(), copies = to.parameters();
  for (std::size_t i = 0; i < copies.size(); ++i) copies[i].set_requires_grad(originals[i].requires_grad());
}

}  // namespace

void Clones::replace_tensors_and_children(torch::nn::Module& copy) {
  for (auto& parameter : ModuleAccess::parameters(copy)) parameter.value() = tensor(parameter.value());
  for (auto& buffer : ModuleAccess::buffers(copy)) buffer.value() = tensor(buffer.value());
  for (auto& child : ModuleAccess::children(copy)) child.value() = module(child.value());
}

at::Tensor Clones::tensor(const at::Tensor& original) {
  if (!original.defined()) return original;
  auto& [kept, copy] = tensors_[original.unsafeGetTensorImpl()];
  if (!copy.defined()) {
    kept = original;
    copy = original.detach();
    copy = device_ && *device_ != copy.device() ? copy.to(*device_) : copy.clone();
    copy.set_requires_grad(original.requires_grad());
  }
  return copy;
}

std::shared_ptr<torch::nn::Module> Clones::module(const std::shared_ptr<torch::nn::Module>& original) {
  if (!original) return nullptr;
  if (const auto known = modules_.find(original.get()); known != modules_.end()) return known->second.second;
  auto copy = make(original);
  modules_[original.get()] = {original, copy};
  return copy;
}

std::shared_ptr<torch::nn::Module> Clones::make(const std::shared_ptr<torch::nn::Module>& original) {
  // Containers are copied here and not by their own clone(): a module beside the container may refer to its
  // children, and Sequential's clone() gives new names.
  if (typeid(*original) == typeid(torch::nn::Module)) {
    auto copy = std::make_shared<torch::nn::Module>(*original);
    replace_tensors_and_children(*copy);
    return copy;
  }
  if (const auto* list = original->as<torch::nn::ModuleListImpl>()) {
    auto copy = std::make_shared<torch::nn::ModuleListImpl>(*list);
    for (auto& child : *copy) child = module(child);
    replace_tensors_and_children(*copy);
    return copy;
  }
  if (const auto* sequence = original->as<torch::nn::SequentialImpl>()) {
    auto copy = std::make_shared<torch::nn::SequentialImpl>(*sequence);
    for (auto& child : *copy) {
      const auto before = child.ptr();
      child = child.clone(device_);
      copy_requires_grad(*before, *child.ptr());
      modules_[before.get()] = {before, child.ptr()};
    }
    replace_tensors_and_children(*copy);
    return copy;
  }
  auto copy = original->clone(device_);
  copy_requires_grad(*original, *copy);
  return copy;
}

}  // namespace palimpsest::nn
