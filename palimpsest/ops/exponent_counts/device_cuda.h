#pragma once

#include "palimpsest/kernels/exponent_histogram.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::ops {

/// Of `values`, which fill one block of memory on a GPU: counted there, whereupon kExponentBins numbers are
/// copied and waited for.
kernels::ExponentHistogram exponent_counts_cuda(const at::Tensor& values);

}  // namespace palimpsest::ops
