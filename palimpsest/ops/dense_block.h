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
/// conv1 is 1x1 (the bottleneck, 4k channels as a rule), conv2 keeps the size of the image.
///
/// All features lie in one buffer, each layer's in its slot, and that buffer is the result. A feature's mean
/// and variance are the same for every layer that reads it, so they are taken once. norm1 and act1 are
/// applied while conv1 reads (kernels/dense_block.h). Backward adds each layer's share into one gradient
/// buffer (f32 for 16-bit values) and takes off what batch normalization owes once for each feature.
///
/// Saved for backward, in channels of full size: the buffer, k a layer; what the bottleneck's normalization
/// keeps (options.keep of norm2, of norm1 where post-activation), 4k a layer; where post-activation, and
/// norm2 does not keep its output, k more. The masks of dropout are drawn again in backward from the
/// generator's state (5 kB a layer); on a GPU they are kept, a byte a value. Beside these backward takes the
/// gradient buffer and 8k to 12k channels for a moment; on a GPU as many channels as the layer at work reads,
/// too, and so does forward. All of it belongs to the node, or to the call: it goes when the graph goes.
///
/// The same gradients and running statistics as the plain layers, but for rounding. A second derivative is an
/// error, and so is a second backward pass without retain_graph (libtorch's own).
/// On a GPU nothing is copied to the host or waited for, and a CUDA graph can hold both passes
/// (ops/dense_block/device.h).
/// Python has it as torch.ops.palimpsest.dense_block, with one value of each list a layer.
/// Source: Huang et al., CVPR 2017; Pleiss, Chen, Huang, Li, van der Maaten, Weinberger, "Memory-Efficient
/// Implementation of DenseNets", 2017, whose shared storages this does without.
namespace palimpsest::ops {

/// The tensors and options of one layer. In pre-activation order norm1 normalizes the features and norm2 the
/// bottleneck; in post-activation order norm1 normalizes the bottleneck and norm2 the new features.
struct DenseLayer {
  NormalizationTensors norm1;
  AbnOptions options1;      ///< `saved` matters only where norm1 normalizes the bottleneck
  at::Tensor conv1_weight;  ///< (bottleneck, features, 1, 1)
  NormalizationTensors norm2;
  AbnOptions options2;
  at::Tensor conv2_weight;  ///< (k, bottleneck, kh, kw)
  ConvolutionOptions conv2;
};

struct DenseBlockOptions {
  bool pre_activation = true;
  double dropout = 0;  ///< share of new features that is set to zero, in [0, 1); 0 in eval mode
};

/// x: (N, C, H, W), f32, f64, f16 or bf16, on CPU or CUDA; contiguous and channels-last run natively, any
/// other strides through a copy. Returns (N, C + sum of k, H, W) in that layout, whose first C channels are
/// x. Kernels are of x's type; under autocast x is cast, and f32 kernels are rounded when they run and again
/// in backward (ops/common/autocast.h). norm1's activation in pre-activation order: ReLU, leaky ReLU or the
/// identity; the bottleneck's: what its `keep` allows. Errors: c10::Error
/// "[dense_block] requirement, got value".
at::Tensor dense_block(const at::Tensor& x, const std::vector<DenseLayer>& layers,
                       const DenseBlockOptions& options = {});

}  // namespace palimpsest::ops
