#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/nn/dense_transition.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::models {

/// What a densely connected network computes before its first block.
enum class DenseStem {
  kLarge,  ///< 7x7 convolution of stride 2, normalization and max pooling: the form for ImageNet
  /// Three 3x3 convolutions, the first of stride 2, with normalizations between them, and max pooling: the form of
  /// the In-Place ABN paper's release.
  kDeep,
  kSmall,  ///< one 3x3 convolution, which keeps the image's size up to the first transition: the form for CIFAR
};

/// The shape of a densely connected network.
struct DenseNetShape {
  std::string name;             ///< for messages
  std::vector<int64_t> blocks;  ///< layers of each block
  int64_t growth = 32;          ///< channels that a layer adds, k
  DenseStem stem = DenseStem::kLarge;

  int64_t stem_channels() const { return 2 * growth; }
  /// The number of weights of the bottlenecks' convolutions: nearly all of the network's.
  int64_t bottleneck_weights() const;
};

/// DenseNet-BC: dense blocks with bottlenecks (nn/dense_block.h), and between them transitions that halve the
/// channels, the height and the width (nn/dense_transition.h). Parameters and buffers have torchvision's
/// names and order, so torchvision's weights load unchanged. The form for CIFAR, which torchvision lacks, has
/// the names of gpleiss/efficient_densenet_pytorch (features.norm_final for features.norm5). The deep stem is
/// features.conv0, norm0, conv1, norm1, conv2; models::unwrap translates the names of its release.
///
/// `options.dense_strategy` decides which tensors blocks, transitions and the last normalization save. Under
/// `naive` and `shared_gradient`, transitions and the last normalization are libtorch's layers; under the
/// other dense strategies they save only their input, which the block saves in any case.
/// `options.norm.strategy` is the strategy of the bottlenecks and of the stem.
///
/// With `options.pre_activation` = false, normalization and activation follow each convolution, in layers,
/// transitions and stem; there is no last normalization, because the features are activated. This is the order
/// that the second paper compares. Its networks have keys of their own: norm1 has the channels of conv1's output,
/// and so on. `options.dropout` drops new features behind each 3x3 convolution of a block, as torchvision's
/// drop_rate does; the first paper, which trains so on CIFAR without augmentation (0.2), also drops behind the 1x1
/// convolutions.
/// Initialization: convolutions by He's normal rule with the fan-out of common/convolution.h, as in torchvision's
/// ResNets; normalizations with weight 1 and bias 0; the classifier by libtorch's rule. With the deep stem as in
/// its release, by Glorot's rules (initialize_by_glorot).
/// Sources: Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks", CVPR 2017;
/// Pleiss et al., "Memory-Efficient Implementation of DenseNets", 2017 (232 and 264 layers, k = 48); the release of
/// Rota Bulo, Porzi, Kontschieder, CVPR 2018 (deep stem).
class DenseNet : public nn::Cloneable<DenseNet, Backbone> {
 public:
  /// Ignores options.output_stride: the features have output stride 32, in the form for CIFAR 4.
  DenseNet(const DenseNetShape& shape, const BackboneOptions& options);
  at::Tensor features(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(parts_, convs_, norms_, last_norm_, blocks_, transitions_);
  }

  DenseNetShape shape_;
  std::shared_ptr<torch::nn::Module> parts_;
  std::vector<nn::Conv2d> convs_;  ///< of the stem
  std::vector<nn::BatchNormAct>
      norms_;  ///< each behind the convolution of the same place; the last may be missing
  nn::BatchNormAct last_norm_{nullptr};
  std::vector<nn::DenseBlock> blocks_;
  std::vector<nn::DenseTransition> transitions_;
};

/// Returns the shape of the network for CIFAR with this name: "densenet_bc100_k12" has 100 layers and k = 12,
/// in three blocks of (layers - 4) / 6 layers each. Returns nothing for a name of another form. Throws
/// Error(kUsage) for numbers that make no network.
std::optional<DenseNetShape> small_densenet(const std::string& name);

}  // namespace palimpsest::models
