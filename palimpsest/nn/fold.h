#pragma once

#include "palimpsest/nn/batch_norm_act.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>

namespace palimpsest::nn {

/// A normalization with running statistics in eval mode, before its activation, as one line per channel:
///   y[n,c,...] = scale[c] * x[n,c,...] + shift[c]
///   scale = weight / sqrt(running_var + eps),   shift = bias - running_mean * scale
/// (absent weight and bias: 1 and 0). (C), f64, so that folded weights are rounded once.
struct ChannelAffine {
  at::Tensor scale, shift;

  /// Channels [first, first + count), for a normalization over several stacked outputs.
  ChannelAffine channels(int64_t first, int64_t count) const;
};

/// Throws Error(kUsage) in training mode, where the statistics are those of the batch, and without running
/// statistics.
ChannelAffine inference_affine(const BatchNormActImpl& norm);

/// Changes `conv` so that it computes scale * conv(x) + shift: the weight is scaled per output channel, and
/// the bias, which is added if there is none, takes the shift. `affine.shift` may be undefined: 0. The weight
/// keeps its address, dtype and strides. Throws Error(kUsage) unless `affine` has one channel per output
/// channel.
void scale_convolution(torch::nn::Conv2dImpl& conv, const ChannelAffine& affine);

/// Removes the normalization from a layer in eval mode and leaves its activation, which libtorch's own
/// operator then applies; a layer without an activation becomes the identity, without a pass over x. The
/// layer then has no weight and bias, a running mean of 0, a running variance of 1 and eps 0, so a file says
/// the same. Training the layer again would normalize with the statistics of the batch: a folded network is
/// for inference.
void keep_activation_only(BatchNormActImpl& norm);

/// Moves the normalization of norm(conv(x)) into the convolution, where both are in eval mode and nothing
/// else reads conv(x). norm(conv(x)) stays the same but for rounding (relative 1e-6 in f32) and costs no
/// multiplication of its own. Throws Error(kUsage) in training mode or if the channels differ, before
/// anything is changed. models/fold.h folds a whole network.
void fold_batch_norm(torch::nn::Conv2dImpl& conv, BatchNormActImpl& norm);

}  // namespace palimpsest::nn
