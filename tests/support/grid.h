#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/half.h"
#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/abn.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

/// What tests of kernels, operators and modules loop over. Activations: kernels::kActivations.
namespace palimpsest::testing {

using kernels::Saved;

/// Every tensor that the fused layer may save for backward.
inline constexpr Saved kAllSaved[] = {Saved::kOutput,     Saved::kOutputForm1, Saved::kPreActivation,
                                      Saved::kNormalized, Saved::kInput,       Saved::kOutputBit};

/// Whether backward through the activation can start from that tensor.
constexpr bool can_save(Activation activation, Saved saved) {
  if (saved == Saved::kOutputBit) return kernels::has_branches(activation);
  return !saves_output(saved) || kernels::is_invertible(activation);
}

/// The activations for which holds(activation) is true.
template <class Predicate>
std::vector<Activation> activations_that(const Predicate& holds) {
  std::vector<Activation> result;
  for (const auto& [activation, name, is_listed] : kernels::kActivations)
    if (holds(activation)) result.push_back(activation);
  return result;
}

/// The activations for which z and one bit determine y.
inline std::vector<Activation> branched_activations() {
  return activations_that(kernels::has_branches);
}

inline constexpr Layout kLayouts[] = {Layout::kNCHW, Layout::kChannelsLast};

/// Every storage type.
using StorageTypes = ::testing::Types<float, double, Float16, BFloat16>;

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, Float16>) return DType::f16;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::bf16;
  return DType::f32;
}

inline const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "f64";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    default:
      return "f32";
  }
}

/// Names a typed suite's instances: TYPED_TEST_SUITE(Abn, StorageTypes, TypeName).
struct TypeName {
  template <class T>
  static std::string GetName(int) {
    return name_of(dtype_of<T>());
  }
};

}  // namespace palimpsest::testing
