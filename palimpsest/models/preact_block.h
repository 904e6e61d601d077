#pragma once

#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/deferred_activation.h"
#include "palimpsest/nn/norm_options.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::models {

/// A pre-activation block: x + conv_k(act(bn_k(... conv1(act(bn1(x)))))), with no normalization after the sum.
/// A bottleneck has three convolutions, a basic block two. If the shape changes, the shortcut is
/// proj_conv(act(bn1(x))) instead of x, and bn1 may write over x. Otherwise x has two readers, so bn1 writes a
/// new tensor; it does not save x, and no copy of x is made.
/// Behind a stem that activates its output (`Options::activated`), both paths read the input itself.
/// With `Options::dropout`, a training batch drops whole channels of what the last convolution reads
/// (nn/feature_dropout.h).
/// Names: bn1, convs.conv1, convs.bn2, convs.conv2, ..., proj_conv.
///
/// Channels saved for backward, with C outer and W inner channels: the inputs and outputs of the normalizations
/// under `standard` (bottleneck 2C + 4W, basic 2C + 2W), the outputs in place (C + 2W, C + W). Dropout adds the
/// product under `standard`, one factor per image and channel in place and under `store_y`, and z under the
/// checkpoint strategies, which then save it beside x.
/// Source: He, Zhang, Ren, Sun, "Identity Mappings in Deep Residual Networks", ECCV 2016.
class PreactBlock : public nn::Cloneable<PreactBlock> {
 public:
  /// A square convolution without bias that keeps the size at stride 1.
  struct Convolution {
    int64_t out = 0;
    int64_t kernel = 1, stride = 1, dilation = 1, groups = 1;
  };
  struct Options {
    int64_t in = 0;
    std::vector<Convolution> convolutions =
        {};  ///< at least one; the projection has the product of the strides
    nn::NormOptions norm = {};
    bool activated = false;  ///< the input is activated already: there is no bn1, and the block projects
    double dropout = 0;      ///< before the last convolution, which must not be the first, too; in [0, 1)
  };
  explicit PreactBlock(const Options& options);
  at::Tensor forward(const at::Tensor& x);

  /// Returns the number of convolutions of the residual branch.
  std::size_t depth() const { return convs_.size(); }

 private:
  at::Tensor last_convolution(at::Tensor h);
  void rebind(nn::Clones& clones) override { clones(norms_, convs_, proj_conv_); }

  std::vector<nn::BatchNormAct>
      norms_;  ///< each before the convolution of the same place; the first may be empty
  std::vector<nn::Conv2d> convs_;
  nn::Conv2d proj_conv_{nullptr};
  double dropout_;
  nn::DeferredActivation dropped_ = {};  ///< what the last normalization leaves to the reader with dropout
};

}  // namespace palimpsest::models
