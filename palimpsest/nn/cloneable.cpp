#include "palimpsest/nn/cloneable.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/common/module_access.h"

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <typeinfo>
#include <utility>
#include <vector>

namespace palimpsest::nn {
namespace {

/// Repairs the copies of torch::nn::Cloneable, which forget requires_grad.
void copy_requires_grad(const torch::nn::Module& from, const torch::nn::Module& to) {
  const auto originals = from.parameters(), copies = to.parameters();
  for (std::size_t i = 0; i < std::min(copies.size(), originals.size()); ++i)
    copies[i].set_requires_grad(originals[i].requires_grad());
}

template <class Container>
std::shared_ptr<Container> copy_of(const torch::nn::Module& container) {
  return std::make_shared<Container>(dynamic_cast<const Container&>(container));
}

bool is_container(const torch::nn::Module& module) {
  return typeid(module) == typeid(torch::nn::Module) || typeid(module) == typeid(torch::nn::ModuleListImpl) ||
         typeid(module) == typeid(torch::nn::ModuleDictImpl) ||
         typeid(module) == typeid(torch::nn::SequentialImpl);
}

/// Returns whether the tensors of the two modules themselves, not of their children, are the same.
bool share_tensors(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto same = [](const auto& x, const auto& y) {
    return std::ranges::equal(x, y,
                              [](const auto& l, const auto& r) { return l.value().is_same(r.value()); });
  };
  return same(a.named_parameters(false), b.named_parameters(false)) &&
         same(a.named_buffers(false), b.named_buffers(false));
}

[[noreturn]] void refuse_untied(const std::string& what) {
  throw Error(ErrorKind::kUsage,
              "[clone] " + what +
                  " has two owners, of which one copies it by libtorch's own clone(), which unties them; use "
                  "the modules of palimpsest::nn, or nn::Cloneable, for both owners");
}

[[noreturn]] void refuse_sliced(const torch::nn::Module& original) {
  const std::string& name = original.name();
  throw Error(ErrorKind::kUsage,
              "[clone] " + name +
                  " has no clone() of its own, and the one that it inherits copies the base "
                  "class only; derive it from nn::Cloneable<" +
                  name + ", Base>, or override clone() if Base is one of libtorch's layers");
}

}  // namespace

/// A Sequential calls its children by the type that it was given: a copy of a child cannot be put into a
/// Sequential but by the AnyModule that its copy came with.
struct Clones::AnyModules {
  std::unordered_map<const void*, torch::nn::AnyModule> copies;
};

/// The Clones of the outermost clone() that this thread is in.
class Clones::Scope {
 public:
  explicit Scope(const std::optional<at::Device>& device) : own_(device), outer_(current) {
    if (!current || current->device_ != device) current = &own_;
  }
  ~Scope() { current = outer_; }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  Clones& operator*() const { return *current; }

 private:
  static thread_local Clones* current;
  Clones own_;
  Clones* outer_;
};

thread_local Clones* Clones::Scope::current = nullptr;

/// Counts the references to all modules and tensors below a module. A member that rebind() forgot is a
/// reference more after clone() than before.
class Clones::References {
 public:
  References(const torch::nn::Module& original, const Clones& clones) : clones_(clones) {
    visit(original, "");
  }

  /// Throws Error(kUsage) for an original that rebind() did not name and that has more references than before.
  /// (Another thread may hold a reference to the others for a moment.)
  void check(const torch::nn::Module& owner, const std::unordered_set<const void*>& rebound) const {
    const auto refuse = [&](const std::string& name) {
      throw Error(ErrorKind::kUsage, "[clone] a member of the copy of " + owner.name() +
                                         " would still refer to '" + name +
                                         "' of the original; name every such member in rebind()");
    };
    for (const auto& [name, module, before] : modules_)
      if (!rebound.contains(module) && count(*module) > before) refuse(name);
    for (const auto& [name, tensor, before] : tensors_)
      if (!rebound.contains(tensor) && count(tensor) > before) refuse(name);
  }

 private:
  template <class Object>
  struct Entry {
    std::string name;
    const Object* object;
    int64_t before;
  };

  int64_t count(const torch::nn::Module& module) const {
    const auto known = clones_.modules_.find(&module);
    return module.weak_from_this().use_count() -
           (known != clones_.modules_.end() && known->second.first ? 1 : 0);
  }
  int64_t count(const c10::TensorImpl* tensor) const {
    return static_cast<int64_t>(c10::raw::intrusive_ptr::use_count(const_cast<c10::TensorImpl*>(tensor))) -
           (clones_.tensors_.contains(tensor) ? 1 : 0);
  }
  void visit(const torch::nn::Module& module, const std::string& prefix) {
    const auto add = [&](const auto& tensors) {
      for (const auto& item : tensors)
        if (const auto* tensor = item.value().unsafeGetTensorImpl(); item.value().defined())
          tensors_.push_back({prefix + item.key(), tensor, count(tensor)});
    };
    add(ModuleAccess::parameters(module));
    add(ModuleAccess::buffers(module));
    for (const auto& child : ModuleAccess::children(module)) {
      if (!child.value()) continue;
      modules_.push_back({prefix + child.key(), child.value().get(), count(*child.value())});
      visit(*child.value(), prefix + child.key() + ".");
    }
  }

  const Clones& clones_;
  std::vector<Entry<torch::nn::Module>> modules_;
  std::vector<Entry<c10::TensorImpl>> tensors_;
};

std::shared_ptr<torch::nn::Module> Clones::clone(
    const torch::nn::Module& original, const std::optional<at::Device>& device,
    const std::function<ModulePointer()>& copy_members,
    const std::function<void(torch::nn::Module&, Clones&)>& rebind) {
  const Scope scope(device);
  Clones& clones = *scope;
  if (const auto known = clones.modules_.find(&original); known != clones.modules_.end())
    return known->second.second;
  const References references(original, clones);
  auto copy = copy_members();
  if (typeid(*copy) != typeid(original)) refuse_sliced(original);
  std::unordered_set<const void*> rebound;
  auto* const outer = std::exchange(clones.rebound_, nullptr);
  clones.replace_tensors_and_children(*copy);
  clones.rebound_ = &rebound;
  rebind(*copy, clones);
  clones.rebound_ = outer;
  references.check(original, rebound);
  clones.modules_[&original] = {original.weak_from_this().lock(), copy};
  return copy;
}

void Clones::replace_tensors_and_children(torch::nn::Module& copy) {
  copy_sequences(copy);
  for (auto& parameter : ModuleAccess::parameters(copy)) parameter.value() = tensor(parameter.value());
  for (auto& buffer : ModuleAccess::buffers(copy)) buffer.value() = tensor(buffer.value());
  for (auto& child : ModuleAccess::children(copy)) child.value() = module(child.value());
}

/// Copies the children of Sequentials first: see AnyModules.
void Clones::copy_sequences(const torch::nn::Module& module) {
  for (const auto& child : ModuleAccess::children(module))
    if (child.value() && is_container(*child.value()) && !modules_.contains(child.value().get())) {
      copy_sequences(*child.value());
      if (typeid(*child.value()) == typeid(torch::nn::SequentialImpl)) this->module(child.value());
    }
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
  if (typeid(*original) == typeid(torch::nn::ModuleListImpl)) {
    auto copy = copy_of<torch::nn::ModuleListImpl>(*original);
    replace_tensors_and_children(*copy);
    for (auto& child : *copy) child = module(child);
    return copy;
  }
  if (typeid(*original) == typeid(torch::nn::ModuleDictImpl)) {
    auto copy = copy_of<torch::nn::ModuleDictImpl>(*original);
    replace_tensors_and_children(*copy);
    for (auto& child : *copy) child.value() = module(child.value());
    return copy;
  }
  if (typeid(*original) == typeid(torch::nn::SequentialImpl)) {
    auto copy = copy_of<torch::nn::SequentialImpl>(*original);
    if (!any_modules_) any_modules_ = std::make_shared<AnyModules>();
    for (auto& child : *copy) {
      const ModulePointer before = child.ptr();
      if (const auto known = any_modules_->copies.find(before.get());
          known != any_modules_->copies.end() && known->second.type_info() == child.type_info()) {
        child = known->second;
        continue;
      }
      auto fresh = child.clone(device_);
      if (!fresh.ptr()) refuse_sliced(*before);
      adopt(before, fresh.ptr());
      any_modules_->copies[before.get()] = fresh;
      child = std::move(fresh);
    }
    replace_tensors_and_children(*copy);
    return copy;
  }
  auto copy = original->clone(device_);
  adopt(original, copy);
  return copy;
}

/// Notes a copy that a module's own clone() has made.
void Clones::adopt(const ModulePointer& original, const ModulePointer& copy) {
  if (typeid(*copy) != typeid(*original)) refuse_sliced(*original);
  const auto known = modules_.find(original.get());
  if (known != modules_.end() && known->second.second == copy) return;  // by Clones::clone
  copy_requires_grad(*original, *copy);
  pair(*original, copy);
}

void Clones::pair(const torch::nn::Module& original, const ModulePointer& copy) {
  auto& [kept, known] = modules_[&original];
  if (known && known != copy && !share_tensors(*known, *copy)) refuse_untied("a " + original.name());
  kept = original.weak_from_this().lock();
  known = copy;
  const auto pair_all = [&](const auto& originals, const auto& copies, const auto& visit) {
    for (const auto& item : originals)
      if (const auto* found = copies.find(item.key())) visit(item.key(), item.value(), *found);
  };
  const auto tensors = [&](const std::string& name, const at::Tensor& from, const at::Tensor& to) {
    if (!from.defined() || !to.defined()) return;
    auto& [kept_tensor, known_tensor] = tensors_[from.unsafeGetTensorImpl()];
    if (known_tensor.defined() && !known_tensor.is_same(to))
      refuse_untied("'" + name + "' of a " + original.name());
    kept_tensor = from;
    known_tensor = to;
  };
  pair_all(ModuleAccess::parameters(original), ModuleAccess::parameters(*copy), tensors);
  pair_all(ModuleAccess::buffers(original), ModuleAccess::buffers(*copy), tensors);
  pair_all(ModuleAccess::children(original), ModuleAccess::children(*copy),
           [&](const std::string&, const ModulePointer& from, const ModulePointer& to) {
             if (from && to) pair(*from, to);
           });
}

}  // namespace palimpsest::nn
