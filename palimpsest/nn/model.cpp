#include "palimpsest/nn/model.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/common/module_access.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/linear.h"

#include <torch/nn/modules/container/sequential.h>

#include <typeinfo>

namespace palimpsest::nn {
namespace {

using Forward = at::Tensor (*)(torch::nn::Module&, const at::Tensor&);

template <class Module>
at::Tensor forward_of(torch::nn::Module& module, const at::Tensor& x) {
  return static_cast<Module&>(module).forward(x);
}

/// Returns the forward function of the module's class; nullptr if the class is none of these. A derived class
/// does not count: forward is not virtual, so that the base's would run in the place of the module's own.
template <class First, class... Rest>
Forward find_forward(torch::nn::Module& module) {
  if (typeid(module) == typeid(First)) return &forward_of<First>;
  if constexpr (sizeof...(Rest) > 0) return find_forward<Rest...>(module);
  return nullptr;
}

}  // namespace

/// Returns the module that has or would have the classifier, and the classifier's name there; nullptr if there
/// is no such module.
std::pair<const torch::nn::Module*, std::string> Model::classifier_place() const {
  const auto dot = classifier_name_.find('.');
  if (dot == std::string::npos) return {this, classifier_name_};
  const auto* holder = ModuleAccess::children(*this).find(classifier_name_.substr(0, dot));
  return {holder ? holder->get() : nullptr, classifier_name_.substr(dot + 1)};
}

std::shared_ptr<torch::nn::Module> Model::find_classifier() const {
  const auto [holder, name] = classifier_place();
  if (!holder || name.empty()) return nullptr;
  const auto* classifier = ModuleAccess::children(*holder).find(name);
  return classifier ? *classifier : nullptr;
}

bool Model::has_classifier() const {
  return find_classifier() != nullptr;
}

void Model::declare_classifier(const std::string& name, int64_t channels) {
  classifier_name_ = name;
  classifier_channels_ = channels;
}

void Model::check_is_classifier(const std::string& name) const {
  if (classifier_name_.empty())
    throw Error(ErrorKind::kUsage, "[" + this->name() + "] has no classifier that can be replaced");
  if (name != classifier_name_)
    throw Error(ErrorKind::kUsage, "[" + this->name() + "] only the classifier '" + classifier_name_ +
                                       "' can be replaced, got '" + name +
                                       "': the network calls its other children by members of its own");
}

void Model::set_classifier(std::shared_ptr<torch::nn::Module> module, Forward forward) {
  check_is_classifier(classifier_name_);
  if (!module)
    throw Error(ErrorKind::kUsage, "[" + name() + "] the new classifier must be a module, got none");
  if (!classifier_place().first) {
    const std::string holder = classifier_name_.substr(0, classifier_name_.find('.'));
    register_module(holder, std::make_shared<torch::nn::Module>(holder));
  }
  const auto [place, name] = classifier_place();
  auto& holder = const_cast<torch::nn::Module&>(*place);  // of this module, which is not const
  if (has_classifier()) {
    ModuleAccess::children(holder)[name] = module;
  } else {
    holder.register_module(name, module);
  }
  classifier_ = std::move(module);
  forward_ = forward;
}

at::Tensor Model::classify(const at::Tensor& x) {
  const std::shared_ptr<torch::nn::Module> current = find_classifier();
  if (current != classifier_) {
    const Forward forward = find_forward<LinearImpl, Conv2dImpl, torch::nn::LinearImpl, torch::nn::Conv2dImpl,
                                         torch::nn::IdentityImpl, torch::nn::SequentialImpl>(*current);
    if (!forward)
      throw Error(ErrorKind::kUsage, "[" + name() + "] '" + classifier_name_ + "' was replaced by a " +
                                         current->name() +
                                         ", whose forward is not known; use replace_classifier()");
    classifier_ = current;
    forward_ = forward;
  }
  return forward_(*classifier_, x);
}

}  // namespace palimpsest::nn
