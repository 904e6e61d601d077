#pragma once

#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/conv2d.h"

#include <torch/nn/pimpl.h>

namespace palimpsest::nn {

/// conv(act(bn(x))) as one module with the children `norm` and `conv`; it calls BatchNormAct::forward_into.
/// Under `checkpoint`, `checkpoint_normalized` and `store_y` it is one node of the graph, which saves one
/// full-size tensor for any activation.
///   nn::BatchNormActConv2d(nn::BatchNormActOptions(64).strategy(nn::Strategy::kStoreY),
///                          torch::nn::Conv2dOptions(64, 128, 3).padding(1).bias(false));
class BatchNormActConv2dImpl : public Cloneable<BatchNormActConv2dImpl> {
 public:
  /// Throws Error(kUsage) unless the convolution reads as many channels as the normalization has. The
  /// strategy chooses the convolution's backend (convolution_backend).
  BatchNormActConv2dImpl(const BatchNormActOptions& norm, const torch::nn::Conv2dOptions& conv);

  /// Maps (N, C, H, W) to (N, C_out, H', W'). Overwrites x as BatchNormAct does.
  at::Tensor forward(at::Tensor x);

  BatchNormAct norm;
  Conv2d conv;

 private:
  void rebind(Clones& clones) override { clones(norm, conv); }
};

TORCH_MODULE(BatchNormActConv2d);

}  // namespace palimpsest::nn
