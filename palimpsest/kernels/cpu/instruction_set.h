#pragma once

#include "palimpsest/kernels/cpu/abn_kernels.h"

#include <span>

namespace palimpsest::kernels::cpu {

/// The instruction sets that this library was compiled for, best first.
std::span<const InstructionSet> compiled_instruction_sets();

/// The set called `name`, or the best one that runs on this processor if `name` is null or empty.
/// Throws std::invalid_argument, listing what runs here, for a name that is unknown or whose set this
/// processor lacks.
const InstructionSet& find_instruction_set(const char* name);

/// The set in use: find_instruction_set(getenv("PALIMPSEST_ISA")), asked once.
const InstructionSet& current_instruction_set();

}  // namespace palimpsest::kernels::cpu
