#pragma once

#include "palimpsest/cli/options.h"

#include <string>

namespace palimpsest::cli {

/// Compares options.compare.strategies on one training, in this order:
///   1. memory of one warm step, and the largest batch that fits in options.compare.memory (default: the peak
///      of the first strategy); one strategy after another
///   2. seconds per step; the strategies take turns, so that a slower phase of the machine slows all
///   3. the training of each, from the same seed, into the folder OUTPUT/STRATEGY
/// Prints the table and writes index.html, memory.svg, loss.svg and results.json into the output folder
/// (train/report.h). Returns 0, or 128 + the signal that stopped it: then there is no report.
int compare(Options options, const std::string& title);

}  // namespace palimpsest::cli
