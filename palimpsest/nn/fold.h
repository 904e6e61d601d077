#pragma once

#include "palimpsest/nn/batch_norm_act.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>

#include <cstdint>

namespace palimpsest::nn {

/// A normalization with running statistics in eval mode, before its activation, as one line per channel:
///   y[n,c,...] = scale[c] * x[n,c,...] + shift[c]
///   scale = weight / sqrt(running_var + eps),   shift = bias - running_mean * scale
/// An absent weight means 1, an absent bias means 0. Both members are (C), f64, so that folded weights are
/// rounded once.
struct ChannelAffine {
  at::Tensor scale, shift;

  /// Returns channels [first, first + count), for a normalization over several stacked outputs.
  ChannelAffine channels(int64_t first, int64_t count) const;
};

/// Returns the line that `norm` computes. Throws Error(kUsage) in training mode, where the statistics are
/// those of the batch, and without running statistics.
ChannelAffine inference_affine(const BatchNormActImpl& norm);

/// Changes `conv` so that it computes scale * conv(x) + shift: the weight is scaled per output channel, and
/// the bias takes the shift. A convolution without a bias gets one. An undefined `affine.shift` means 0. The
/// weight keeps its address, dtype and strides. Throws Error(kUsage) unless `affine` has one channel per
/// output channel.
void scale_convolution(torch::nn::Conv2dImpl& conv, const ChannelAffine& affine);

/// Removes the normalization from a layer in eval mode and leaves its activation, which libtorch's own
/// operator then applies. An in-place layer without an activation returns x itself. The layer then has no
/// weight and bias, a running mean of 0, a running variance of 1 and eps 0, so that a file of its tensors
/// describes the same function. Training the layer again would normalize with the statistics of the batch: a
/// folded network is for inference.
void keep_activation_only(BatchNormActImpl& norm);

/// Moves the normalization of norm(conv(x)) into the convolution. Both must be in eval mode, and nothing else
/// may read conv(x). norm(conv(x)) stays the same but for rounding (relative 1e-6 in f32), and the
/// normalization costs no multiplication. Throws Error(kUsage) in training mode or if the channels differ;
/// nothing is changed then. models/fold.h folds a whole network.
void fold_batch_norm(torch::nn::Conv2dImpl& conv, BatchNormActImpl& norm);

}  // namespace palimpsest::nn
