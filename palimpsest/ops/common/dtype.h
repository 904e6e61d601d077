#pragma once

#include "palimpsest/base/dtype.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace palimpsest::ops {

/// Returns the kernels' name for a floating dtype; f32 for any other.
inline DType storage_dtype(at::ScalarType dtype) {
  switch (dtype) {
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

/// Returns the kernels' name for the dtype of `t`: f32, f64, f16 or bf16. Raises c10::Error "[op] values must
/// be of a floating type, got TYPE" for any other. (Public operators check the dtype before.)
inline DType dtype_of(const char* op, const at::Tensor& t) {
  const DType dtype = storage_dtype(t.scalar_type());
  TORCH_CHECK(dtype != DType::f32 || t.scalar_type() == at::kFloat, "[", op,
              "] values must be of a floating type, got ", t.scalar_type());
  return dtype;
}

}  // namespace palimpsest::ops
