#pragma once

namespace palimpsest::kernels::cpu {

/// Returns the instruction set of the CPU kernels in use: "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-bf16" or
/// "native". It is chosen once, at the first use: the best set that this processor has, or the set that the environment
/// variable PALIMPSEST_ISA names. Throws std::invalid_argument if PALIMPSEST_ISA names a set that is unknown,
/// was not compiled, or does not run here.
const char* instruction_set();

}  // namespace palimpsest::kernels::cpu
