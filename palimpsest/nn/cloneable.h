#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace palimpsest::nn {

/// The originals and the copies of the tensors and modules of one module, while clone() copies it. The clone()
/// of a child that derives from Cloneable uses the Clones of its parent, so that two references to one
/// original, wherever they are, become two references to one copy.
class Clones {
 public:
  /// Gives `copy`, a member-wise copy of a module, parameters, buffers and children of its own. Values,
  /// dtypes, strides and requires_grad stay as they are; gradients are not copied.
  void replace_tensors_and_children(torch::nn::Module& copy);

  /// Lets members refer to the copies: tensors, module holders and shared pointers to modules (each may be
  /// empty), and ranges of them. A member that is registered nowhere gets a copy here.
  template <class... Members>
  void operator()(Members&... members) {
    (replace(members), ...);
  }

  /// Returns the copy of `original`. `copy_members` makes a member-wise copy and `rebind` lets the members of
  /// the copy refer to copies. Throws Error(kUsage) if the class of the copy is not the class of the original,
  /// or if a member of the copy refers to a registered module or tensor of the original.
  static std::shared_ptr<torch::nn::Module> clone(
      const torch::nn::Module& original, const std::optional<at::Device>& device,
      const std::function<std::shared_ptr<torch::nn::Module>()>& copy_members,
      const std::function<void(torch::nn::Module& copy, Clones& clones)>& rebind);

 private:
  class Scope;
  class References;
  struct AnyModules;
  using ModulePointer = std::shared_ptr<torch::nn::Module>;

  explicit Clones(const std::optional<at::Device>& device) : device_(device) {}
  at::Tensor tensor(const at::Tensor& original);
  ModulePointer module(const ModulePointer& original);
  ModulePointer make(const ModulePointer& original);
  void copy_sequences(const torch::nn::Module& module);
  void adopt(const ModulePointer& original, const ModulePointer& copy);
  void pair(const torch::nn::Module& original, const ModulePointer& copy);

  void note(const void* original) {
    if (rebound_) rebound_->insert(original);
  }
  void replace(at::Tensor& member) {
    note(member.unsafeGetTensorImpl());
    member = tensor(member);
  }
  template <class Module>
  void replace(std::shared_ptr<Module>& member) {
    if (!member) return;
    note(member.get());
    member = std::dynamic_pointer_cast<Module>(module(member));
  }
  template <class Module>
  void replace(torch::nn::ModuleHolder<Module>& member) {
    if (member.is_empty()) return;
    std::shared_ptr<Module> pointer = member.ptr();
    replace(pointer);
    member = torch::nn::ModuleHolder<Module>(std::move(pointer));
  }
  template <std::ranges::range Members>
  void replace(Members& members) {
    for (auto& member : members) replace(member);
  }

  std::optional<at::Device> device_;
  // Holds the originals: a new object at the address of a freed original would be taken for the original.
  std::unordered_map<const void*, std::pair<at::Tensor, at::Tensor>> tensors_;
  std::unordered_map<const void*, std::pair<std::shared_ptr<const torch::nn::Module>, ModulePointer>>
      modules_;
  std::shared_ptr<AnyModules> any_modules_;             // copies of the children of Sequentials
  std::unordered_set<const void*>* rebound_ = nullptr;  // originals that the current rebind() named
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
/// rebind() names every member that refers to a tensor or to a module, in any order. clone() throws
/// Error(kUsage) if a member that rebind() forgot refers to a registered module or tensor, if a class derived
/// from Derived has no clone() of its own, and if a tensor is tied to one within a module whose own clone()
/// unties it (libtorch's classes). A child that is read by name only needs no entry.
/// Base: the base class, for a hierarchy of modules. Its constructors are inherited.
template <class Derived, class Base = torch::nn::Module>
class Cloneable : public Base {
 public:
  using Base::Base;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    return Clones::clone(
        *this, device, [this] { return std::make_shared<Derived>(static_cast<const Derived&>(*this)); },
        [](torch::nn::Module& copy, Clones& clones) {
          static_cast<Cloneable&>(dynamic_cast<Derived&>(copy)).rebind(clones);
        });
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
