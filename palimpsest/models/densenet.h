#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/nn/dense_transition.h"

#include <optional>
#include <string>
#include <vector>

namespace palimpsest::models {

/// The shape of a densely connected network.
struct DenseNetShape {
  std::string name;             ///< for messages
  std::vector<int64_t> blocks;  ///< layers of each block
  int64_t growth = 32;          ///< channels that a layer adds, k
  /// The form for CIFAR: a 3x3 convolution begins, and the image keeps its size up to the first transition.
  /// Else 7x7, stride 2, normalization and max pooling.
  bool small_images = false;

  int64_t stem_channels() const { return 2 * growth; }
};

/// DenseNet-BC: dense blocks with bottlenecks (nn/dense_block.h), between them transitions that halve
/// channels and pixels: normalization, activation, 1x1 convolution, mean of 2x2 pixels. Parameters and
/// buffers have torchvision's names and order, so its weights load unchanged; the form for CIFAR, which
/// torchvision has not, has those of gpleiss/efficient_densenet_pytorch (features.norm_final for
/// features.norm5).
///
/// `options.dense_strategy` decides what the blocks keep, and with it the rest: under `naive` and
/// `shared_gradient` transitions and the last normalization are libtorch's layers; under the others they keep
/// their input alone, which the block keeps anyway, and a transition takes the mean before its convolution:
/// the same result by a quarter of the products. `options.norm.strategy` is that of the bottlenecks and of
/// the stem. Sources: Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks",
/// CVPR 2017; Pleiss et al., "Memory-Efficient Implementation of DenseNets", 2017 (232 and 264 layers, k =
/// 48).
class DenseNet : public Backbone {
 public:
  /// options.output_stride: 32.
  DenseNet(const DenseNetShape& shape, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  DenseNetShape shape_;
  std::shared_ptr<torch::nn::Module> parts_;
  torch::nn::Conv2d conv0_{nullptr};
  nn::Norm norm0_{nullptr}, last_norm_{nullptr};
  std::vector<nn::DenseBlock> blocks_;
  std::vector<nn::DenseTransition> transitions_;
};

/// The network for CIFAR that the name stands for: "densenet_bc100_k12" has 100 layers and k = 12; three
/// blocks of (layers - 4) / 6. Nothing for a name of another form; throws Error(kUsage) for numbers that make
/// no network.
std::optional<DenseNetShape> small_densenet(const std::string& name);

}  // namespace palimpsest::models
