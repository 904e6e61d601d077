#include "palimpsest/kernels/cpu/instruction_set.h"

#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

namespace palimpsest::kernels::cpu {

// Each namespace is one compilation of abn_f32.cpp and its siblings (cmake/InstructionSets.cmake).
#define PALIMPSEST_DECLARE_SET(isa)           \
  namespace isa {                             \
  extern const AbnKernels<float> kAbnF32;     \
  extern const AbnKernels<double> kAbnF64;    \
  extern const AbnKernels<Float16> kAbnF16;   \
  extern const AbnKernels<BFloat16> kAbnBF16; \
  }

#ifdef __x86_64__
PALIMPSEST_DECLARE_SET(x86_64_v4)
PALIMPSEST_DECLARE_SET(x86_64_v3)
PALIMPSEST_DECLARE_SET(x86_64_v2)
#else
PALIMPSEST_DECLARE_SET(native)
#endif

#define PALIMPSEST_SET(isa, name, runs_here)                                 \
  InstructionSet {                                                           \
    name, runs_here, isa::kAbnF32, isa::kAbnF64, isa::kAbnF16, isa::kAbnBF16 \
  }

std::span<const InstructionSet> compiled_instruction_sets() {
#ifdef __x86_64__
  static const InstructionSet sets[] = {
      PALIMPSEST_SET(x86_64_v4, "x86-64-v4", [] { return __builtin_cpu_supports("x86-64-v4") != 0; }),
      PALIMPSEST_SET(x86_64_v3, "x86-64-v3", [] { return __builtin_cpu_supports("x86-64-v3") != 0; }),
      PALIMPSEST_SET(x86_64_v2, "x86-64-v2", [] { return __builtin_cpu_supports("x86-64-v2") != 0; }),
  };
#else
  static const InstructionSet sets[] = {PALIMPSEST_SET(native, "native", [] { return true; })};
#endif
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

}  // namespace palimpsest::kernels::cpu
