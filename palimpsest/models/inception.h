#pragma once

#include "palimpsest/models/backbone.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::models {

/// A convolution of a branch; padding keeps the size at stride 1.
struct BranchConvolution {
  int64_t channels = 0;
  int64_t height = 1, width = 1;  ///< of the kernel
  int64_t stride = 1;
};

enum class BranchPool { kNone, kAverage, kMax };

/// One path through a block: an optional 3x3 pooling, a chain of convolutions, and side by side the
/// convolutions at its end. Without convolutions the pooling passes its channels through.
struct BranchShape {
  BranchPool pool = BranchPool::kNone;
  std::vector<BranchConvolution> chain, ends;
};

/// A block: branches over the same input, stacked along the channels. The outputs of `ends` come first, in
/// order, then the channels that were passed through.
struct InceptionBlockShape {
  std::string name;
  std::vector<BranchShape> branches;
  int64_t stride = 1;   ///< of the poolings; convolutions have strides of their own
  bool pooled = false;  ///< 3x3 max pooling of stride 2 follows the block
};

/// An Inception network: stem, blocks, global mean, dropout, classifier.
struct InceptionShape {
  struct Stem {
    BranchConvolution convolution;
    bool pooled = false;  ///< 3x3 max pooling of stride 2 follows
  };
  std::string name;        ///< for messages
  bool normalized = true;  ///< false: convolutions have a bias, and the activation follows them (GoogLeNet)
  std::vector<Stem> stem;
  std::vector<InceptionBlockShape> blocks;
  double dropout = 0;
};

// The three networks at the scale of images of 32 pixels; at that of ImageNet v1 and v3 are in
// models/torchvision_inception.h. The blocks are those of the papers, with channels
// divided by `divisor`. The stem halves the image once and not three times, so the blocks work on 16, 8 and 4
// pixels. Convolutions of stride 1 keep the size. There are no auxiliary classifiers and no local response
// normalization.

/// GoogLeNet, Inception v1: Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, table 1.
InceptionShape googlenet(const std::string& name, int64_t divisor);
/// Inception v2, "BN-Inception": Ioffe, Szegedy, "Batch Normalization: Accelerating Deep Network Training by
/// Reducing Internal Covariate Shift", ICML 2015, appendix. The paper's blocks 4c and 4d make 608 channels
/// and its block 4e makes 1056, although it prints 576 and 1024. Like the paper's network it has no dropout.
InceptionShape inception_v2(const std::string& name, int64_t divisor);
/// The same network for images of 224 pixels: a 7x7 convolution and two poolings come before the blocks, which
/// work on 28, 14 and 7 pixels. torchvision does not have it.
InceptionShape inception_v2_imagenet();
/// Inception v3: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016. 1x7
/// and 7x1 convolutions stand for 7x7, and 1x3 beside 3x1 for the last 3x3. The channels are torchvision's.
InceptionShape inception_v3(const std::string& name, int64_t divisor);

/// The names of a normalization and of the convolutions whose stacked outputs it reads, relative to the
/// module that returns them (for models/fold.h).
struct NormalizedNames {
  std::vector<std::string> convs;
  std::string norm;
};

/// One block. All convolutions that end a branch share one normalization (`bn`) over their stacked outputs.
/// It equals one normalization per convolution, because statistics are per channel. The stack is saved once,
/// without its parts. Names: branch1.conv1, branch1.bn1, ..., bn; two ends are conv2a and conv2b.
///
/// Channels saved for backward beside the input, for chains of W channels and ends of E: 2W + 2E under
/// `standard`, W + E in place, W + 2E under the other strategies, because every reader of the block saves its
/// activated output. Average pooling also saves its input, which is the block's input, and its output.
class InceptionBlock : public nn::Cloneable<InceptionBlock> {
 public:
  InceptionBlock(const InceptionBlockShape& shape, int64_t in, bool normalized, const nn::NormOptions& norm);
  at::Tensor forward(const at::Tensor& x);
  int64_t out_channels() const { return out_; }

  std::vector<NormalizedNames> normalizations() const;

 private:
  struct Branch {
    std::string name;
    BranchPool pool = BranchPool::kNone;
    std::vector<nn::Conv2d> chain, ends;
    std::vector<nn::BatchNormAct> norms;  // one per convolution of the chain; none without normalization
    std::vector<std::string> end_names;
  };
  at::Tensor pooled(const at::Tensor& x, BranchPool pool) const;
  void run(Branch& branch, const at::Tensor& x, std::vector<at::Tensor>& ends);
  void rebind(nn::Clones& clones) override {
    for (Branch& branch : branches_) clones(branch.chain, branch.ends, branch.norms);
    clones(bn_);
  }

  int64_t stride_;
  int64_t out_ = 0;
  nn::NormOptions norm_;
  std::vector<Branch> branches_;
  nn::BatchNormAct bn_{nullptr};
};

/// GoogLeNet, Inception v2 and v3. Names: conv1, bn1, conv2, ... in the stem, the names of the blocks
/// (inception3a in v1 and v2, mixed5b in v3), fc. Dropout draws from libtorch's generator, in training mode
/// only.
class Inception : public nn::Cloneable<Inception, Backbone> {
 public:
  /// A network without normalization reads only the activation of options.norm. Ignores
  /// options.output_stride.
  Inception(const InceptionShape& shape, const BackboneOptions& options);

  at::Tensor features(const at::Tensor& images) override;
  /// Does the same as Backbone::forward, with dropout before the classifier.
  at::Tensor forward(const at::Tensor& images) override;
  /// Returns the names of the stem's normalizations and of their convolutions.
  std::vector<NormalizedNames> normalizations() const;

 private:
  void rebind(nn::Clones& clones) override {
    rebind_classifier(clones);
    clones(convs_, norms_, blocks_);
  }

  InceptionShape shape_;
  nn::NormOptions norm_;
  std::vector<nn::Conv2d> convs_;
  std::vector<nn::BatchNormAct> norms_;
  std::vector<std::shared_ptr<InceptionBlock>> blocks_;
};

}  // namespace palimpsest::models
