#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <ranges>
#include <unordered_map>
#include <utility>

namespace palimpsest::nn {

/// The originals and the copies of the tensors and modules of one module, while clone() copies it.
class Clones {
 public:
  /// Makes copies on `device`, or on the device of the original.
  explicit Clones(const std::optional<at::Device>& device) : device_(device) {}

  /// Gives `copy`, a member-wise copy of a module, parameters, buffers and children of its own. Values,
  /// dtypes, strides and requires_grad stay as they are; gradients are not copied.
  void replace_tensors_and_children(torch::nn::Module& copy);

  /// Lets members refer to the copies: tensors, module holders and shared pointers to modules (each may be
  /// empty), and ranges of them. A member that is registered nowhere gets a copy here.
  template <class... Members>
  void operator()(Members&... members) {
    (replace(members), ...);
  }

 private:
  at::Tensor tensor(const at::Tensor& original);
  std::shared_ptr<torch::nn::Module> module(const std::shared_ptr<torch::nn::Module>& original);
  std::shared_ptr<torch::nn::Module> make(const std::shared_ptr<torch::nn::Module>& original);

  void replace(at::Tensor& member) { member = tensor(member); }
  template <class Module>
  void replace(std::shared_ptr<Module>& member) {
    if (member) member = std::dynamic_pointer_cast<Module>(module(member));
  }
  template <class Module>
  void replace(torch::nn::ModuleHolder<Module>& member) {
    if (!member.is_empty())
      member = torch::nn::ModuleHolder<Module>(std::dynamic_pointer_cast<Module>(module(member.ptr())));
  }
  template <std::ranges::range Members>
  void replace(Members& members) {
    for (auto& member : members) replace(member);
  }

  std::optional<at::Device> device_;
  // Holds the originals: a new object at the address of a freed original would be taken for the original.
  std::unordered_map<const void*, std::pair<at::Tensor, at::Tensor>> tensors_;
  std::unordered_map<const void*,
                     std::pair<std::shared_ptr<torch::nn::Module>, std::shared_ptr<torch::nn::Module>>>
      modules_;
};

/// Adds clone() to a module whose constructor builds its children. clone() makes a deep copy of parameters,
/// buffers and children, on the same device or on `device`. All options and settings stay as they are, also
/// those that were changed after construction: training flags, requires_grad, strategies, replaced children.
/// (torch::nn::Cloneable calls reset(), which builds the children anew with their first settings.) Children
/// of libtorch's own classes are copied by their own clone().
///
///   class BlockImpl : public nn::Cloneable<BlockImpl> {
///     ...
///    private:
///     void rebind(nn::Clones& clones) override { clones(conv1_, bn1_, layers_); }
///
/// rebind() names every member that refers to a tensor or to a module, in any order.
/// Base: the base class, for a hierarchy of modules. Its constructors are inherited.
template <class Derived, class Base = torch::nn::Module>
class Cloneable : public Base {
 public:
  using Base::Base;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<Derived>(static_cast<const Derived&>(*this));
    Clones clones(device);
    clones.replace_tensors_and_children(*copy);
    static_cast<Cloneable&>(*copy).rebind(clones);
    return copy;
  }

 private:
  // Base may be a Cloneable, too.  NOLINTNEXTLINE(modernize-use-override)
  virtual void rebind(Clones& clones) = 0;

  // torch::nn::Cloneable calls this function for the children of a module.
  void clone_(torch::nn::Module& other, const std::optional<at::Device>& device) override {
    static_cast<Derived&>(*this) = dynamic_cast<Derived&>(*other.clone(device));
  }
};

}  // namespace palimpsest::nn
