#pragma once

#include "palimpsest/amp/precision.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <concepts>
#include <functional>
#include <memory>
#include <utility>

namespace palimpsest::train {

/// A module with a forward pass from images to logits.
template <class M>
concept ForwardModule =
    std::derived_from<M, torch::nn::Module> && requires(M& module, const at::Tensor& images) {
      { module.forward(images) } -> std::convertible_to<at::Tensor>;
    };

/// A network as train uses it: a module and its forward pass, which maps images (N, C, H, W) to logits,
/// (N, classes) for classification or (N, classes, H, W) for segmentation. Any module with
/// forward(Tensor) -> Tensor converts to it, as a reference, a shared pointer or a holder:
///
///   torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 3), torch::nn::Flatten(), torch::nn::Linear(288, 10));
///   train::train(net, loader, /*validation=*/nullptr, options);
///
/// A Network made from a reference does not own the module.
class Network {
 public:
  template <ForwardModule M>
  /* implicit */ Network(M& module)
      : Network(module, [&module](const at::Tensor& images, bool coarse) -> at::Tensor {
          return logits_of(module, images, coarse);
        }) {}
  template <ForwardModule M>
  /* implicit */ Network(std::shared_ptr<M> module)
      : Network(*module, [module](const at::Tensor& images, bool coarse) -> at::Tensor {
          return logits_of(*module, images, coarse);
        }) {}
  template <ForwardModule M>
  /* implicit */ Network(const torch::nn::ModuleHolder<M>& holder) : Network(holder.ptr()) {}
  /// Makes a network of a module whose forward() takes or returns something else.
  Network(torch::nn::Module& module, std::function<at::Tensor(const at::Tensor& images)> forward)
      : Network(module, [forward = std::move(forward)](const at::Tensor& images, bool /*coarse*/) {
          return forward(images);
        }) {}

  torch::nn::Module& module() const { return *module_; }
  at::Tensor forward(const at::Tensor& images) const { return logits_(images, /*coarse=*/false); }
  /// Returns what the module's coarse_logits() returns (nn/model.h), or forward() if it has none.
  at::Tensor coarse_logits(const at::Tensor& images) const { return logits_(images, /*coarse=*/true); }

 private:
  using Logits = std::function<at::Tensor(const at::Tensor& images, bool coarse)>;
  Network(torch::nn::Module& module, Logits logits) : module_(&module), logits_(std::move(logits)) {}

  template <class M>
  static at::Tensor logits_of(M& module, const at::Tensor& images, bool coarse) {
    if constexpr (requires { module.coarse_logits(images); })
      if (coarse) return module.coarse_logits(images);
    return module.forward(images);
  }

  torch::nn::Module* module_;
  Logits logits_;
};

/// Computes the logits of `images` in `precision`. Returns 16-bit logits as f32, which a loss needs.
at::Tensor forward(const Network& network, const at::Tensor& images, amp::Precision precision);

/// Does the same without the upsampling to the size of the images, where the network has one. loss() and
/// MetricsAccumulator take these logits.
at::Tensor coarse_logits(const Network& network, const at::Tensor& images, amp::Precision precision);

}  // namespace palimpsest::train
