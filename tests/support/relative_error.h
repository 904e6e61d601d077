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

/// The table of tests/support/tolerance.h by libtorch's names of the types.
inline DType dtype_of(at::ScalarType type) {
  return type == at::kDouble     ? DType::f64
         : type == at::kHalf     ? DType::f16
         : type == at::kBFloat16 ? DType::bf16
                                 : DType::f32;
}
inline Tolerance tolerance(at::ScalarType type) {
  return tolerance(dtype_of(type));
}
inline double tolerance_across_kinks(at::ScalarType type) {
  return tolerance_across_kinks(dtype_of(type));
}

}  // namespace palimpsest::testing
