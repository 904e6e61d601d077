#pragma once

#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/convolution.h"

#include <ATen/core/Tensor.h>

#include <vector>

/// A densely connected block in one node of the graph, without a concatenation: every layer reads all
/// features before it and adds k of its own.
///   pre-activation:   new = conv2(act2(norm2(conv1(act1(norm1(features))))))
///   post-activation:  new = act2(norm2(conv2(act1(norm1(conv1(features))))))
/// conv1 is 1x1 and makes the bottleneck, usually 4k channels. conv2 keeps the size of the image.
///
/// All features lie in one buffer, each layer's features in their slot, and this buffer is the result. The
/// mean and variance of a feature are the same for every layer that reads it, so they are computed once.
/// norm1 and act1 are applied while conv1 reads (kernels/dense_block.h). Backward adds each layer's share to
/// one gradient buffer (f32 for 16-bit values). It subtracts the terms that batch normalization adds to the
/// gradient of a feature once per feature, for all its readers together.
///
/// Channels of full size saved for backward, per layer:
///   k    the layer's slot of the buffer
///   4k   the tensor that the bottleneck's normalization saves (options2.saved; in post-activation order
///        options1.saved)
///   k    only in post-activation order, if norm2 does not save its output
/// Dropout: on a CPU backward draws the masks again from the generator's state (5 kB per layer); on a GPU the
/// masks are saved, one byte per value. Beside the saved tensors backward takes the gradient buffer and,
/// while a layer runs, 8k to 12k channels; on a GPU forward and backward also take as many channels as the
/// layer reads. All of this memory belongs to the node of the graph, or to the call.
///
/// Gradients and running statistics are those of the plain layers, but for rounding. Double backward is an
/// error, and so is a second backward pass without retain_graph (libtorch's own error).
/// On a GPU the host waits for values only where the bottleneck's normalization does
/// (ops/invertibility/slot_plan.h), and a CUDA graph can hold both passes.
/// Python: torch.ops.palimpsest.dense_block, with one tensor per layer in each list.
/// Sources: Huang et al., "Densely Connected Convolutional Networks", CVPR 2017; Pleiss, Chen, Huang, Li, van
/// der Maaten, Weinberger, "Memory-Efficient Implementation of DenseNets", 2017, whose shared storages this
/// operator does not need.
namespace palimpsest::ops {

/// The tensors and options of one layer. In pre-activation order norm1 normalizes the features and norm2 the
/// bottleneck; in post-activation order norm1 normalizes the bottleneck and norm2 the new features.
struct DenseLayer {
  NormalizationTensors norm1;
  AbnOptions options1;      ///< `saved` has an effect only in post-activation order
  at::Tensor conv1_weight;  ///< (bottleneck, features, 1, 1)
  NormalizationTensors norm2;
  AbnOptions options2;
  at::Tensor conv2_weight;  ///< (k, bottleneck, kh, kw)
  ConvolutionOptions conv2;
};

struct DenseBlockOptions {
  bool pre_activation = true;  ///< normalization and activation precede each convolution; false: follow it
  double dropout = 0;          ///< share of new features that is set to zero, in [0, 1); 0 in eval mode
};

/// x: (N, C, H, W), f32, f64, f16 or bf16, on CPU or CUDA. Contiguous and channels-last tensors run natively;
/// any other strides cost one copy. Returns (N, C + sum of k, H, W) in the layout of x; its first C channels
/// are x. The convolutions' weights have the dtype of x. Under autocast x is cast, and f32 weights are
/// rounded when they run and again in backward (ops/autocast.h). In pre-activation order norm1's activation
/// must be ReLU, leaky ReLU or the identity; the other activations must fit their `saved`.
/// Errors: c10::Error "[dense_block] requirement, got value", and "[abn] ..." for a normalization.
at::Tensor dense_block(const at::Tensor& x, const std::vector<DenseLayer>& layers,
                       const DenseBlockOptions& options = {});

}  // namespace palimpsest::ops
