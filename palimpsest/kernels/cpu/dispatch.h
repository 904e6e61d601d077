#pragma once

#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/conv2d/grouped_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/weight_gradient_kernels.h"
#include "palimpsest/kernels/cpu/dense_block/kernels.h"
#include "palimpsest/kernels/cpu/max_pool/kernels.h"

#include <span>
#include <type_traits>

namespace palimpsest::kernels::cpu {

/// What one compilation of the kernels hands out: a table of each family.
struct InstructionSet {
  const char* name;
  bool (*runs_here)();
  AbnKernels<float> abn_f32;
  AbnKernels<double> abn_f64;
  AbnKernels<Float16> abn_f16;
  AbnKernels<BFloat16> abn_bf16;
  MaxPoolKernels max_pool;
  WeightGradientKernels weight_gradient;
  GroupedConv2dKernels grouped_conv2d;
  DenseKernels<float> dense_f32;
  DenseKernels<double> dense_f64;
  DenseKernels<Float16> dense_f16;
  DenseKernels<BFloat16> dense_bf16;

  template <class S>
  const DenseKernels<S>& dense() const {
    if constexpr (std::is_same_v<S, float>) return dense_f32;
    if constexpr (std::is_same_v<S, double>) return dense_f64;
    if constexpr (std::is_same_v<S, Float16>) return dense_f16;
    if constexpr (std::is_same_v<S, BFloat16>) return dense_bf16;
  }

  template <class S>
  const AbnKernels<S>& abn() const {
    if constexpr (std::is_same_v<S, float>) return abn_f32;
    if constexpr (std::is_same_v<S, double>) return abn_f64;
    if constexpr (std::is_same_v<S, Float16>) return abn_f16;
    if constexpr (std::is_same_v<S, BFloat16>) return abn_bf16;
  }
};

/// The instruction sets that this library was compiled for, best first.
std::span<const InstructionSet> compiled_instruction_sets();

/// The set called `name`, or the best one that runs on this processor if `name` is null or empty.
/// Throws std::invalid_argument, listing what runs here, for a name that is unknown or whose set this
/// processor lacks.
const InstructionSet& find_instruction_set(const char* name);

/// The set in use: find_instruction_set(getenv("PALIMPSEST_ISA")), asked once.
const InstructionSet& current_instruction_set();

}  // namespace palimpsest::kernels::cpu
