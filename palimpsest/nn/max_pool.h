#pragma once

#include "palimpsest/nn/strategy.h"
#include "palimpsest/ops/max_pool.h"

#include <ATen/ops/max_pool2d.h>

namespace palimpsest::nn {

/// Max pooling by strategy: the same values and gradients. `standard` is libtorch's, which keeps its input
/// and eight bytes an output; the others keep one byte an output. x: (N, C, H, W) or (C, H, W); arguments as
/// ops::max_pool2d has them.
inline at::Tensor max_pool2d(const at::Tensor& x, Strategy strategy, at::IntArrayRef kernel_size,
                             at::IntArrayRef stride = {}, at::IntArrayRef padding = 0) {
  return strategy == Strategy::kStandard ? at::max_pool2d(x, kernel_size, stride, padding)
                                         : ops::max_pool2d(x, kernel_size, stride, padding);
}

}  // namespace palimpsest::nn
