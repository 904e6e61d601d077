#pragma once

#include <ATen/core/Tensor.h>

namespace palimpsest::nn {

/// Returns the mean of each channel over all pixels, (N, C, 1, 1), by ops::spatial_mean: its gradient takes
/// no memory if the mean is computed before the other readers of x. x: (N, C, H, W), any floating dtype.
at::Tensor spatial_mean(const at::Tensor& x);

}  // namespace palimpsest::nn
