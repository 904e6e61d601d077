#pragma once

#include <ATen/core/Tensor.h>

namespace palimpsest::ops {

/// Returns the mean of each channel over all pixels: x.mean over dimensions 2 and on, which stay with size 1.
/// The gradient of x is an expanded view of one value per channel, where that of libtorch's mean is a whole
/// tensor of the size of x. Compute the mean before the other readers of x: backward then runs it last, and
/// autograd adds the view to their gradient in place.
///
/// x: (N, C, spatial...), any floating dtype. Saves nothing for backward.
/// Errors: c10::Error "[spatial_mean] requirement, got value".
at::Tensor spatial_mean(const at::Tensor& x);

}  // namespace palimpsest::ops
