#include "palimpsest/kernels/cpu/dispatch.h"

#include "compiled_sets.h"
#include "palimpsest/kernels/cpu.h"

#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace palimpsest::kernels::cpu {

// Each namespace is one compilation of the sources that cmake/InstructionSets.cmake is given.
#define PALIMPSEST_DECLARE_SET(isa, name)             \
  namespace isa {                                     \
  extern const AbnKernels<float> kAbnF32;             \
  extern const AbnKernels<double> kAbnF64;            \
  extern const AbnKernels<Float16> kAbnF16;           \
  extern const AbnKernels<BFloat16> kAbnBF16;         \
  extern const MaxPoolKernels kMaxPool;               \
  extern const WeightGradientKernels kWeightGradient; \
  extern const GroupedConv2dKernels kGroupedConv2d;   \
  extern const DenseKernels<float> kDenseF32;         \
  extern const DenseKernels<double> kDenseF64;        \
  extern const DenseKernels<Float16> kDenseF16;       \
  extern const DenseKernels<BFloat16> kDenseBF16;     \
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
   isa::kAbnF32,                              \
   isa::kAbnF64,                              \
   isa::kAbnF16,                              \
   isa::kAbnBF16,                             \
   isa::kMaxPool,                             \
   isa::kWeightGradient,                      \
   isa::kGroupedConv2d,                       \
   isa::kDenseF32,                            \
   isa::kDenseF64,                            \
   isa::kDenseF16,                            \
   isa::kDenseBF16},
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
