#pragma once

#include "palimpsest/kernels/abn.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::ops::invertibility {

/// kernels::gather_channels and kernels::scatter_channels on the device of `full`. All tensors are contiguous as
/// those take them.
void gather_channels(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& full,
                     const at::Tensor& part);
void scatter_channels(const kernels::AbnProblem& problem, const at::Tensor& index, const at::Tensor& part,
                      const at::Tensor& full);

}  // namespace palimpsest::ops::invertibility
