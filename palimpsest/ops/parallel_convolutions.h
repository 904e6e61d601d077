#pragma once

#include "palimpsest/ops/convolution.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace palimpsest::ops {

/// Returns the outputs of several convolutions of one input, stacked along dimension 1:
///   cat(convolution(x, weights[0], none, options[0]), convolution(x, weights[1], none, options[1]), ...)
/// Each output is written into the result as soon as it is computed. Backward sums the gradients of x over
/// the convolutions; on a CPU part of the batch by part, so that one tensor of the size of x lives, where
/// autograd holds two to sum those of separate convolutions. Results differ from those in rounding only.
///
/// x: (N, C, spatial...) with 1 to 3 spatial dimensions; weights: (C_i, C / groups, spatial...) each, all of
/// one dtype; options: one per weight; all outputs must have the same spatial size. Autocast and the kernels
/// are those of convolution (ops/convolution.h). x and the weights are saved for backward. Double backward is
/// an error. Not traced by torch.compile: it has no Python binding.
/// Errors: c10::Error "[parallel_convolutions] requirement, got value".
at::Tensor parallel_convolutions(const at::Tensor& x, at::TensorList weights,
                                 const std::vector<ConvolutionOptions>& options);

}  // namespace palimpsest::ops
