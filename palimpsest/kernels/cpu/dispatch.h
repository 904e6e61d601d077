#pragma once

#include "palimpsest/kernels/cpu/abn/table.h"
#include "palimpsest/kernels/cpu/conv2d/depthwise_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/grouped_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/matrix_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/winograd_kernels.h"
#include "palimpsest/kernels/cpu/dense_block/kernels.h"
#include "palimpsest/kernels/cpu/gates/kernels.h"
#include "palimpsest/kernels/cpu/max_pool/kernels.h"
#include "palimpsest/kernels/cpu/upsampled_loss/kernels.h"

#include <span>
#include <type_traits>

namespace palimpsest::kernels::cpu {

/// The tables of one instruction set's compilation of the kernels.
struct InstructionSet {
  const char* name;
  bool (*runs_here)();
  abn::Kernels<float> abn_f32;
  abn::Kernels<double> abn_f64;
  abn::Kernels<Float16> abn_f16;
  abn::Kernels<BFloat16> abn_bf16;
  max_pool::Kernels max_pool;
  conv2d::MatrixKernels matrix;
  conv2d::WinogradKernels winograd;
  conv2d::GroupedKernels grouped_conv2d;
  conv2d::DepthwiseKernels depthwise_conv2d;
  dense_block::Kernels<float> dense_f32;
  dense_block::Kernels<double> dense_f64;
  dense_block::Kernels<Float16> dense_f16;
  dense_block::Kernels<BFloat16> dense_bf16;
  upsampled_loss::Kernels upsampled_loss;
  gates::Kernels gates;

  template <class S>
  const dense_block::Kernels<S>& dense() const {
    if constexpr (std::is_same_v<S, float>) return dense_f32;
    if constexpr (std::is_same_v<S, double>) return dense_f64;
    if constexpr (std::is_same_v<S, Float16>) return dense_f16;
    if constexpr (std::is_same_v<S, BFloat16>) return dense_bf16;
  }

  template <class S>
  const abn::Kernels<S>& abn() const {
    if constexpr (std::is_same_v<S, float>) return abn_f32;
    if constexpr (std::is_same_v<S, double>) return abn_f64;
    if constexpr (std::is_same_v<S, Float16>) return abn_f16;
    if constexpr (std::is_same_v<S, BFloat16>) return abn_bf16;
  }
};

/// Returns the instruction sets for which this library was compiled, best first.
std::span<const InstructionSet> compiled_instruction_sets();

/// Returns the set with this name, or the best set that runs on this processor if `name` is null or empty.
/// Throws std::invalid_argument, which lists the sets that run here, if none of them has the name.
const InstructionSet& find_instruction_set(const char* name);

/// Returns the set in use: find_instruction_set(getenv("PALIMPSEST_ISA")), evaluated once.
const InstructionSet& current_instruction_set();

}  // namespace palimpsest::kernels::cpu
