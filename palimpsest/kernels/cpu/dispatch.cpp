#include "palimpsest/kernels/cpu/dispatch.h"

#include "compiled_sets.h"
#include "palimpsest/kernels/cpu.h"

#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace palimpsest::kernels::cpu {

// Each namespace `isa` is one compilation of the sources that cmake/InstructionSets.cmake is given.
// The table of bf16 may be of another compilation, `bf16`.
#define PALIMPSEST_DECLARE_SET(isa, bf16, name, level, feature) \
  namespace isa::abn {                                          \
  extern const cpu::abn::Kernels<float> kF32;                   \
  extern const cpu::abn::Kernels<double> kF64;                  \
  extern const cpu::abn::Kernels<Float16> kF16;                 \
  }                                                             \
  namespace bf16::abn {                                         \
  extern const cpu::abn::Kernels<BFloat16> kBF16;               \
  }                                                             \
  namespace isa::max_pool {                                     \
  extern const cpu::max_pool::Kernels kKernels;                 \
  }                                                             \
  namespace isa::conv2d {                                       \
  extern const cpu::conv2d::MatrixKernels kMatrix;              \
  extern const cpu::conv2d::WinogradKernels kWinograd;          \
  extern const cpu::conv2d::GroupedKernels kGrouped;            \
  extern const cpu::conv2d::DepthwiseKernels kDepthwise;        \
  }                                                             \
  namespace isa::dense_block {                                  \
  extern const cpu::dense_block::Kernels<float> kF32;           \
  extern const cpu::dense_block::Kernels<double> kF64;          \
  extern const cpu::dense_block::Kernels<Float16> kF16;         \
  extern const cpu::dense_block::Kernels<BFloat16> kBF16;       \
  }                                                             \
  namespace isa::upsampled_loss {                               \
  extern const cpu::upsampled_loss::Kernels kKernels;           \
  }                                                             \
  namespace isa::gates {                                        \
  extern const cpu::gates::Kernels kKernels;                    \
  }
PALIMPSEST_FOR_EACH_SET(PALIMPSEST_DECLARE_SET)

#ifdef __x86_64__
#define PALIMPSEST_RUNS_HERE(name) (__builtin_cpu_supports(name) != 0)
#else
#define PALIMPSEST_RUNS_HERE(name) true
#endif

std::span<const InstructionSet> compiled_instruction_sets() {
#define PALIMPSEST_SET(isa, bf16, name, level, feature)                         \
  {name,                                                                        \
   [] { return PALIMPSEST_RUNS_HERE(level) && PALIMPSEST_RUNS_HERE(feature); }, \
   isa::abn::kF32,                                                              \
   isa::abn::kF64,                                                              \
   isa::abn::kF16,                                                              \
   bf16::abn::kBF16,                                                            \
   isa::max_pool::kKernels,                                                     \
   isa::conv2d::kMatrix,                                                        \
   isa::conv2d::kWinograd,                                                      \
   isa::conv2d::kGrouped,                                                       \
   isa::conv2d::kDepthwise,                                                     \
   isa::dense_block::kF32,                                                      \
   isa::dense_block::kF64,                                                      \
   isa::dense_block::kF16,                                                      \
   isa::dense_block::kBF16,                                                     \
   isa::upsampled_loss::kKernels,                                               \
   isa::gates::kKernels},
  static const InstructionSet sets[] = {PALIMPSEST_FOR_EACH_SET(PALIMPSEST_SET)};
  return sets;
}

const InstructionSet& find_instruction_set(const char* name) {
  const std::string_view wanted = name ? name : "";
  std::string usable;
  for (const InstructionSet& set : compiled_instruction_sets()) {
    if (!set.runs_here()) continue;
    if (wanted.empty() || wanted == set.name) return set;
    usable += (usable.empty() ? "" : ", ") + std::string(set.name);
  }
  throw std::invalid_argument("PALIMPSEST_ISA must name an instruction set that runs here (" + usable +
                              "), got '" + std::string(wanted) + "'");
}

const InstructionSet& current_instruction_set() {
  static const InstructionSet& set = find_instruction_set(std::getenv("PALIMPSEST_ISA"));
  return set;
}

const char* instruction_set() {
  return current_instruction_set().name;
}

}  // namespace palimpsest::kernels::cpu
