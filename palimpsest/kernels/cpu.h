#pragma once

namespace palimpsest::kernels::cpu {

/// The instruction set of the CPU kernels in use: "x86-64-v2", "x86-64-v3", "x86-64-v4" or "native". It is
/// picked once, at the first use: the best one that this processor has, or the one that PALIMPSEST_ISA in the
/// environment names. Throws std::invalid_argument if PALIMPSEST_ISA names one that is unknown, was not
/// compiled, or does not run here.
const char* instruction_set();

}  // namespace palimpsest::kernels::cpu
