#pragma once

#include "palimpsest/cli/options.h"

#include <string>
#include <vector>

namespace palimpsest::cli {

/// A variant is one training of a comparison: STRATEGY, or STRATEGY+NAME+... where each NAME is a precision, a
/// dense strategy or an activation: "inplace_2+bf16", "store_y+naive", "standard+relu".
/// Returns `options` with these settings, and with the variant as model.strategy spells it: no alias. Throws
/// Error(kUsage), naming what it found and the nearest name, for a part that is no such name, or that comes
/// twice.
Options with_variant(Options options, const std::string& variant);
/// Returns the canonical spelling: "inplace+bf16" -> "inplace_2+bf16". Throws as with_variant does.
std::string canonical_variant(const std::string& variant);
/// Returns whether the text begins with a strategy; check_combinations checks the rest, whose errors say more.
bool begins_with_strategy(const std::string& text);

/// Returns the options of one training per variant of compare.strategies, otherwise equal; each trains into
/// the folder OUTPUT/VARIANT. Throws Error(kUsage) unless there are at least two different variants, and as
/// with_variant does.
std::vector<Options> options_of_variants(const Options& options);

}  // namespace palimpsest::cli
