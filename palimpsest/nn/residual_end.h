#pragma once

#include "palimpsest/nn/norm.h"

namespace palimpsest::nn {

/// The end of a post-activation residual block, act(branch + shortcut); both of one shape.
///
/// `standard` writes the sum over `branch` and the activation over the sum, with libtorch's operators. The
/// in-place strategy must leave `branch` alone, as the branch's last normalization keeps it, and so has one
/// tensor to write in any case: it activates each piece of the sum while that is in cache, and its backward
/// writes over the incoming gradient where no one else holds it. Either way backward reads the output, which
/// the next convolution keeps.
at::Tensor add_and_activate(at::Tensor branch, const at::Tensor& shortcut, const NormOptions& options);

}  // namespace palimpsest::nn
