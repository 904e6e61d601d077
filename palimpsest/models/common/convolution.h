#pragma once

#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/linear.h"
#include "palimpsest/nn/norm_options.h"

#include <cstdint>

namespace palimpsest::models {

/// A square convolution without bias that keeps the size at stride 1 (padding = dilation * (kernel - 1) / 2).
struct SquareConvolution {
  int64_t in = 0, out = 0, kernel = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t groups = 1;
};
nn::Conv2d conv(const SquareConvolution& shape, nn::ConvolutionBackend backend);
/// Makes the convolution with the strategy's backend.
nn::Conv2d conv(const SquareConvolution& shape, const nn::NormOptions& norm);

/// Initializes every convolution without bias below `module` by Kaiming's normal rule, fan-out, as in
/// torchvision's ResNets: std = gain / sqrt(out_channels * kernel^2). The gain preserves the variance through
/// the activation: sqrt(2 / (1 + slope^2)) for leaky ReLU, 1 for the identity. The other activations take
/// ReLU's sqrt(2): a normalization follows each convolution, so the gain affects only the first steps.
void initialize_convolutions(torch::nn::Module& module, const nn::NormOptions& norm);

/// Initializes a network of the In-Place ABN paper as the paper's release does: every convolution without bias
/// below `module` by Glorot's normal rule, std = gain * sqrt(2 / (fan-in + fan-out)), with the same gain; and
/// `classifier`, if there is one, by Glorot's uniform rule with gain 0.1 and bias 0. Normalizations start with
/// weight 1 and bias 0 in any case. The paper does not name a rule.
void initialize_by_glorot(torch::nn::Module& module, const nn::NormOptions& norm,
                          const nn::Linear& classifier);

/// Initializes every convolution and linear layer below `module` with the same gain by fan-in, and biases
/// with 0: for networks without normalization, where forward values must keep their size through any depth.
void initialize_plain_layers(torch::nn::Module& module, const nn::NormOptions& norm);

}  // namespace palimpsest::models
