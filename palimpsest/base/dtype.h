#pragma once

#include "palimpsest/base/half.h"

#include <cstddef>
#include <stdexcept>

namespace palimpsest {

/// Element types of the kernels. f16 and bf16 are storage types only: arithmetic on them is in f32.
enum class DType { f32, f64, f16, bf16 };

/// Returns the bytes per element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    default:
      return 2;
  }
}

/// The accumulate type of the storage type `T`: double for double, else float. A tensor's parameters,
/// statistics and sums have this type.
template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename Accumulate<T>::type;

/// Calls `function.template operator()<T>()` with the C++ type of `dtype`: float, double, Float16 or
/// BFloat16. Throws std::invalid_argument for any other value.
template <class Function>
decltype(auto) dispatch_float(DType dtype, Function&& function) {
  switch (dtype) {
    case DType::f32:
      return function.template operator()<float>();
    case DType::f64:
      return function.template operator()<double>();
    case DType::f16:
      return function.template operator()<Float16>();
    case DType::bf16:
      return function.template operator()<BFloat16>();
  }
  throw std::invalid_argument("dtype must be one of f32, f64, f16 and bf16");
}

}  // namespace palimpsest
