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
#define PALIMPSEST_DECLARE_SET(isa, name)             \
  namespace abn::isa {                                \
  extern const Kernels<float> kF32;                   \
  extern const Kernels<double> kF64;                  \
  extern const Kernels<Float16> kF16;                 \
  extern const Kernels<BFloat16> kBF16;               \
  }                                                   \
  namespace max_pool::isa {                           \
  extern const Kernels kKernels;                      \
  }                                                   \
  namespace conv2d::isa {                             \
  extern const WeightGradientKernels kWeightGradient; \
  extern const GroupedKernels kGrouped;               \
  }                                                   \
  namespace dense_block::isa {                        \
  extern const Kernels<float> kF32;                   \
  extern const Kernels<double> kF64;                  \
  extern const Kernels<Float16> kF16;                 \
  extern const Kernels<BFloat16> kBF16;               \
  }
PALIMPSEST_FOR_EACH_SET(PALIMPSEST_DECLARE_SET)

#ifdef __x86_64__
#define PALIMPSEST_RUNS_HERE(name) (__builtin_cpu_supports(name) != 0)
#else
#define PALIMPSEST_RUNS_HERE(name) true
#endif

std::span<const InstructionSet> compiled_instruction_sets() {
#define PALIMPSEST_SET(isa, name)             \
  {name,                                      \
   [] { return PALIMPSEST_RUNS_HERE(name); }, \
   abn::isa::kF32,                            \
   abn::isa::kF64,                            \
   abn::isa::kF16,                            \
   abn::isa::kBF16,                           \
   max_pool::isa::kKernels,                   \
   conv2d::isa::kWeightGradient,              \
   conv2d::isa::kGrouped,                     \
   dense_block::isa::kF32,                    \
   dense_block::isa::kF64,                    \
   dense_block::isa::kF16,                    \
   dense_block::isa::kBF16},
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
