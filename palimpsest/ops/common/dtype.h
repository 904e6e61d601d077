#pragma once

#include "palimpsest/base/dtype.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace palimpsest::ops {

/// Returns the kernels' name for a storage type that was checked before: f64, f16, bf16; f32 for any other.
inline DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DType::f64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

/// Returns the kernels' name for the dtype of `t`. Raises c10::Error "[op] values must be of a floating type,
/// got TYPE" unless it is f32, f64, f16 or bf16. (Public operators check the dtype before.)
inline DType dtype_of(const char* op, const at::Tensor& t) {
  const DType dtype = dtype_of(t.scalar_type());
  TORCH_CHECK(dtype != DType::f32 || t.scalar_type() == at::kFloat, "[", op,
              "] values must be of a floating type, got ", t.scalar_type());
  return dtype;
}

}  // namespace palimpsest::ops
