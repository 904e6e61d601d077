#pragma once

#include "palimpsest/nn/inplace_abn.h"
#include "palimpsest/nn/norm.h"

#include <torch/nn/modules/conv.h>

namespace palimpsest::nn {

/// What a normalization with running statistics does to its input in eval mode, before the activation, one
/// line per channel:
///   y[n,c,...] = scale[c] * x[n,c,...] + shift[c]
///   scale = weight / sqrt(running_var + eps),   shift = bias - running_mean * scale
/// (absent weight and bias: 1 and 0). f64, (C): what is made of it is rounded once.
struct ChannelAffine {
  at::Tensor scale, shift;

  /// Of channels [first, first + count): of a normalization whose input is several outputs stacked.
  ChannelAffine channels(int64_t first, int64_t count) const;
};

/// Throws Error(kUsage) in training mode, where the statistics are the batch's, and without running ones.
template <class Derived>
ChannelAffine inference_affine(const BatchNormState<Derived>& norm);

/// Changes `conv` so that it gives scale * conv(x) + shift: the weight is scaled per output channel, the bias
/// (made, where there is none) takes the rest. `affine.shift` may be undefined: 0. The weight stays where it
/// is, with its dtype and strides. Throws Error(kUsage) unless there is one channel of `affine` an output
/// channel.
void scale_convolution(torch::nn::Conv2dImpl& conv, const ChannelAffine& affine);

/// Leaves of a normalization in eval mode nothing but its activation, by libtorch's own operator, and of one
/// without an activation nothing: no sweep over x. It has no weight and bias afterwards, a running mean of 0,
/// a running variance of 1 and eps 0, which say the same in a file. Training it again would normalize with
/// the batch's statistics: a network that was folded is for inference.
template <class Derived>
void keep_activation_only(BatchNormState<Derived>& norm);

/// For norm(conv(x)) with both in eval mode, where nothing else reads conv(x): moves the normalization into
/// the convolution. norm(conv(x)) stays the same but for rounding (relative 1e-6 in f32), and costs one
/// multiplication less. Throws Error(kUsage) in training mode or when the channels differ, before anything
/// is changed. models/fold.h does it for a whole network.
template <class Derived>
void fold_batch_norm(torch::nn::Conv2dImpl& conv, BatchNormState<Derived>& norm) {
  scale_convolution(conv, inference_affine(norm));
  keep_activation_only(norm);
}

}  // namespace palimpsest::nn
