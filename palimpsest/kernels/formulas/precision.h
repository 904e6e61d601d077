#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/host_device.h"

namespace palimpsest::kernels {

/// The resolution of a storage type. If an activation saturates deeper than z can show, y is lost, and the
/// deepest y that rounds to z is used instead.
struct Precision {
  double epsilon;   ///< from 1 to the next larger value
  double smallest;  ///< stands for a positive value that became 0
};

template <class S>
PALIMPSEST_HOST_DEVICE constexpr Precision precision_of();
template <>
PALIMPSEST_HOST_DEVICE constexpr Precision precision_of<double>() {
  return {0x1p-52, 0x1p-1022};
}
template <>
PALIMPSEST_HOST_DEVICE constexpr Precision precision_of<float>() {
  return {0x1p-23, 0x1p-126};
}
template <>
PALIMPSEST_HOST_DEVICE constexpr Precision precision_of<Float16>() {
  return {0x1p-10, 0x1p-25};
}
template <>
PALIMPSEST_HOST_DEVICE constexpr Precision precision_of<BFloat16>() {
  return {0x1p-7, 0x1p-126};
}

PALIMPSEST_HOST_DEVICE constexpr Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return precision_of<double>();
    case DType::f16:
      return precision_of<Float16>();
    case DType::bf16:
      return precision_of<BFloat16>();
    default:
      return precision_of<float>();
  }
}

}  // namespace palimpsest::kernels
