#pragma once

#include "palimpsest/kernels/exponent_histogram.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::ops::exponent_counts_detail {

/// Counts `values`, which fill one block of memory on a GPU. The host waits for a copy of kExponentBins
/// numbers.
kernels::ExponentHistogram count_on_gpu(const at::Tensor& values);

}  // namespace palimpsest::ops::exponent_counts_detail
