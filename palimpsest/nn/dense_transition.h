#pragma once

#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/norm.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace palimpsest::nn {

/// What `norm` is for a reader of a block's result: libtorch's layer under `naive` and `shared_gradient`;
/// else one that keeps its input, which the block keeps anyway, and leaves it as it is.
NormOptions reader_of_block(const NormOptions& norm, DenseStrategy strategy);

/// Between two densely connected blocks: norm, activation, 1x1 `conv` to `out` channels, mean of 2x2 pixels
/// (an odd last row or column is left out), under torchvision's names. Under all forms but `naive` and
/// `shared_gradient`, which are libtorch's layers, it keeps its input alone and takes the mean before the
/// convolution: the same result by a quarter of the products.
class DenseTransitionImpl : public torch::nn::Module {
 public:
  DenseTransitionImpl(int64_t in, int64_t out, const NormOptions& options, DenseStrategy strategy);
  at::Tensor forward(const at::Tensor& x);

 private:
  bool plain_;
  Norm norm_{nullptr};
  torch::nn::Conv2d conv_{nullptr};
};
TORCH_MODULE(DenseTransition);

}  // namespace palimpsest::nn
