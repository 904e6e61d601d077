#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/models/inception.h"
#include "palimpsest/models/inverted_residual.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::models {

/// A convolution with a normalization of its own. Its name below the module that has it may have two parts.
struct UnitShape {
  std::string name;
  BranchConvolution convolution;
  bool padded = true;  ///< false: no padding; the size shrinks
};

/// Max pooling between two blocks, without padding.
struct UnitPool {
  int64_t kernel = 3, stride = 2;
  bool ceil_mode = false;  ///< true: a window that reaches beyond the border counts, too
};

/// A block: branches over the same input, stacked along the channels. The outputs of `ends` come first, in
/// order, then the channels that a pooling passed through.
struct UnitBlockShape {
  struct Branch {
    BranchPool pool = BranchPool::kNone;
    std::vector<UnitShape> chain, ends;
  };
  std::string name;
  std::vector<Branch> branches;
  int64_t stride = 1;                 ///< of the branches' 3x3 poolings, which have padding at stride 1
  std::optional<UnitPool> pool = {};  ///< follows the block
};

/// An Inception network: stem, blocks, global mean, dropout, classifier.
struct TorchvisionInceptionShape {
  struct Stem {
    std::vector<UnitShape> units;
    UnitPool pool;  ///< follows the units
  };
  std::string name;  ///< for messages
  std::vector<Stem> stem;
  std::vector<UnitBlockShape> blocks;
  double dropout = 0;
};

// The two networks that torchvision has, for images of 224 and 299 pixels, with all channels divided by
// `divisor`. They have no auxiliary classifiers.

/// GoogLeNet, Inception v1, in torchvision's form: each convolution is normalized, there is no local response
/// normalization, 3x3 convolutions stand for 5x5, the poolings between blocks round sizes up, and the last one
/// is 2x2. Dropout is the paper's, 0.4 (torchvision has 0.2). `googlenet_cifar` follows the paper instead
/// (models/inception.h).
/// Source: Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, table 1.
TorchvisionInceptionShape googlenet_imagenet(int64_t divisor = 1);
/// Inception v3. Convolutions and poolings that halve the image have no padding, and neither have two in the
/// stem. Dropout is 0.5, as in torchvision.
/// Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016.
TorchvisionInceptionShape inception_v3_imagenet(int64_t divisor = 1);

/// One block. Each convolution has a normalization under a name of its own, as in torchvision, but those that
/// end a branch are normalized as one stack (nn/stacked_norms.h). Saved channels are those of InceptionBlock
/// (models/inception.h); under `standard` the ends' parts and their stack are saved, 2W + 3E.
class UnitBlock : public nn::Cloneable<UnitBlock> {
 public:
  UnitBlock(const UnitBlockShape& shape, int64_t in, const nn::NormOptions& norm);
  at::Tensor forward(const at::Tensor& x);
  int64_t out_channels() const { return out_; }

 private:
  struct Branch {
    BranchPool pool = BranchPool::kNone;
    std::vector<std::shared_ptr<ConvNormAct>> chain;
    std::vector<nn::Conv2d> ends;
  };
  at::Tensor pooled(const at::Tensor& x, BranchPool pool) const;
  void rebind(nn::Clones& clones) override {
    for (Branch& branch : branches_) clones(branch.chain, branch.ends);
    clones(end_norms_);
  }

  int64_t stride_;
  int64_t out_ = 0;
  std::vector<Branch> branches_;
  std::vector<nn::BatchNormAct> end_norms_;  // of all branches' ends, in order
};

/// GoogLeNet and Inception v3 with torchvision's names, order and shapes, so that its weights load unchanged:
/// conv1.conv, conv1.bn, inception3a.branch2.0.conv, ...; Conv2d_1a_3x3.conv, Mixed_5b.branch5x5_1.conv, ...;
/// fc. Normalizations have eps 1e-3. Dropout draws from libtorch's generator, in training mode only.
/// torchvision's published files were trained on images with mean 0.5 and deviation 0.5.
class TorchvisionInception : public nn::Cloneable<TorchvisionInception, Backbone> {
 public:
  /// Ignores options.output_stride.
  TorchvisionInception(const TorchvisionInceptionShape& shape, const BackboneOptions& options);

  /// Throws Error(kUsage) for images that are too small for the poolings.
  at::Tensor features(const at::Tensor& images) override;
  /// Does the same as Backbone::forward, with dropout before the classifier.
  at::Tensor forward(const at::Tensor& images) override;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    for (auto& units : stem_) clones(units);
    clones(blocks_);
  }
  at::Tensor pooled(const at::Tensor& x, const UnitPool& pool) const;

  TorchvisionInceptionShape shape_;
  nn::Strategy strategy_;
  int64_t least_side_;
  std::vector<std::vector<std::shared_ptr<ConvNormAct>>> stem_;
  std::vector<std::shared_ptr<UnitBlock>> blocks_;
};

}  // namespace palimpsest::models
