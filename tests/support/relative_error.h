#pragma once

#include "tests/support/compare.h"

#include <ATen/ATen.h>

#include <span>

namespace palimpsest::testing {

/// The relative_error of tests/support/compare.h, of two tensors of one size, in f64.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const auto values = [](const at::Tensor& t) { return t.detach().to(at::kCPU, at::kDouble).contiguous(); };
  const auto span = [](const at::Tensor& t) {
    return std::span<const double>(t.const_data_ptr<double>(), static_cast<std::size_t>(t.numel()));
  };
  const at::Tensor wanted = values(want), taken = values(got.expand_as(want));
  return relative_error(span(taken), span(wanted));
}

/// The same limits as tolerance_at_kinks, by libtorch's name of the type.
inline double tolerance_at_kinks(at::ScalarType dtype) {
  return tolerance_at_kinks(dtype == at::kDouble     ? DType::f64
                            : dtype == at::kHalf     ? DType::f16
                            : dtype == at::kBFloat16 ? DType::bf16
                                                     : DType::f32);
}

}  // namespace palimpsest::testing
