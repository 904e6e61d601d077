#pragma once

#include "palimpsest/nn/cloneable.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace palimpsest::nn {

/// A network from images (N, 3, H, W) to logits: (N, classes) for classification, (N, classes, H, W) for
/// segmentation. Its last layer, the classifier, can be replaced or left out.
class Model : public torch::nn::Module {
 public:
  virtual at::Tensor forward(const at::Tensor& images) = 0;
  virtual bool segments() const = 0;  ///< one label per pixel rather than one per image

  /// Channels of the tensor that the classifier reads: (N, classifier_channels()), for segmentation
  /// (N, classifier_channels(), h, w).
  int64_t classifier_channels() const { return classifier_channels_; }
  /// False if the network was made without a classifier; forward then returns the features.
  bool has_classifier() const;

  /// Puts `module` in the place of the classifier, or where a network without one would have it, under the
  /// classifier's name (`fc`, `classifier` or `cls`). Its forward takes and returns one tensor:
  ///   net->replace_classifier(torch::nn::Linear(net->classifier_channels(), 7));
  template <class Module>
  void replace_classifier(const torch::nn::ModuleHolder<Module>& module) {
    replace_classifier(module.ptr());
  }
  template <class Module>
  void replace_classifier(std::shared_ptr<Module> module) {
    constexpr bool takes_a_tensor = requires(Module& m, const at::Tensor& x) {
      { m.forward(x) } -> std::convertible_to<at::Tensor>;
    };
    static_assert(takes_a_tensor, "the classifier's forward() must take one tensor and return one");
    if constexpr (takes_a_tensor)
      set_classifier(std::move(module), [](torch::nn::Module& m, const at::Tensor& x) -> at::Tensor {
        return static_cast<Module&>(m).forward(x);
      });
  }

  /// As libtorch's replace_module, for the classifier alone: the network calls its other children by members
  /// of its own. Throws Error(kUsage) for another name.
  template <class Module>
  auto replace_module(const std::string& name, Module module) {
    check_is_classifier(name);
    replace_classifier(module);
    return module;
  }

 protected:
  /// Says how the classifier is called and what it reads; call it after all other children are registered,
  /// as names come in the order of registration. Without a module the network returns its features.
  void declare_classifier(const std::string& name, int64_t channels);

  /// classifier(x). A module that was put in the classifier's place by torch::nn::Module::replace_module is
  /// used if it is a Linear, Conv2d, Identity or Sequential, else it is an Error(kUsage).
  at::Tensor classify(const at::Tensor& x);

  void rebind_classifier(Clones& clones) { clones(classifier_); }

 private:
  using Forward = at::Tensor (*)(torch::nn::Module&, const at::Tensor&);
  void check_is_classifier(const std::string& name) const;
  void set_classifier(std::shared_ptr<torch::nn::Module> module, Forward forward);

  std::string classifier_name_;
  int64_t classifier_channels_ = 0;
  std::shared_ptr<torch::nn::Module> classifier_;
  Forward forward_ = nullptr;
};

}  // namespace palimpsest::nn
