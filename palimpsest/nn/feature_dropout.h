#pragma once

#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/deferred_activation.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::nn {

/// Returns conv(x * keep), where x = act(t) if the producer of t deferred its activation, else t. Each channel of
/// each image is set to zero with `probability`, in [0, 1), or else multiplied by 1 / (1 - probability): libtorch's
/// feature_dropout ("Dropout2d") in training mode, with the same draws from its generator.
/// t: (N, C, H, W). Saves t and one factor per image and channel, by ops::gated_conv. A convolution of libtorch's
/// layer (ConvolutionBackend::kLibtorchLayer), and an empty batch, run libtorch's operators, which save act(t) and
/// the product.
/// Source: Tompson et al., "Efficient Object Localization Using Convolutional Networks", CVPR 2015.
at::Tensor feature_dropout_into(const at::Tensor& t, const DeferredActivation& input, Conv2dImpl& conv,
                                double probability);

}  // namespace palimpsest::nn
