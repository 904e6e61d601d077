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
  /// Returns the logits before they are upsampled to the size of the images: forward() is
  /// at::upsample_bilinear2d of them, without align_corners, or they themselves if the network does not
  /// upsample. ops::upsampled_cross_entropy takes them, and no tensor of the images' size is made.
  virtual at::Tensor coarse_logits(const at::Tensor& images) { return forward(images); }
  /// Returns whether the network gives one label per pixel; false: one per image.
  virtual bool is_segmentation() const = 0;

  /// Returns the channels of the tensor that the classifier reads: (N, classifier_channels()), for
  /// segmentation (N, classifier_channels(), h, w).
  int64_t classifier_channels() const { return classifier_channels_; }
  /// Returns the name of the classifier, also where there is none.
  const std::string& classifier_name() const { return classifier_name_; }
  /// Returns false if the network was made without a classifier; forward then returns the features.
  bool has_classifier() const;

  /// Puts `module` in the place of the classifier, under the classifier's name (`fc`, `classifier`, `cls`,
  /// `classifier.1`, ...); a network without a classifier gets one. The module's forward takes and returns one
  /// tensor:
  ///   net->replace_classifier(torch::nn::Linear(net->classifier_channels(), 7));
  template <class Module>
  void replace_classifier(const torch::nn::ModuleHolder<Module>& module) {
    replace_classifier(module.is_empty() ? nullptr : module.ptr());
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

  /// Does the same as libtorch's replace_module, but accepts the classifier's name only: the network calls
  /// its other children through members of its own. Throws Error(kUsage) for another name.
  template <class Module>
  auto replace_module(const std::string& name, Module module) {
    check_is_classifier(name);
    replace_classifier(module);
    return module;
  }

 protected:
  /// Sets the classifier's name and the channels that it reads. A name of two parts, "classifier.1", is that
  /// of a child of a child. Call it after all other children are registered, because names come in the order
  /// of registration. Without a classifier module the network returns its features.
  void declare_classifier(const std::string& name, int64_t channels);

  /// Returns classifier(x). If torch::nn::Module::replace_module put another module in the classifier's
  /// place, that module must be a Linear, Conv2d, Identity or Sequential and of no derived class; else throws
  /// Error(kUsage).
  at::Tensor classify(const at::Tensor& x);

  void rebind_classifier(Clones& clones) { clones(classifier_); }

 private:
  using Forward = at::Tensor (*)(torch::nn::Module&, const at::Tensor&);
  void check_is_classifier(const std::string& name) const;
  void set_classifier(std::shared_ptr<torch::nn::Module> module, Forward forward);
  std::pair<const torch::nn::Module*, std::string> classifier_place() const;
  std::shared_ptr<torch::nn::Module> find_classifier() const;

  std::string classifier_name_;
  int64_t classifier_channels_ = 0;
  std::shared_ptr<torch::nn::Module> classifier_;
  Forward forward_ = nullptr;
};

}  // namespace palimpsest::nn
