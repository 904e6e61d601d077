#pragma once

#include "palimpsest/cli/options.h"

#include <string>

namespace palimpsest::cli {

/// Compares the variants of options.compare.strategies (cli/variants.h) on one training, in this order:
///   1. memory of one warm step, and the largest batch that fits in options.compare.memory (default: the peak
///      of the first one); one after another. options.compare.spend: each but the first trains on this batch,
///      or on the largest crop that fits, a multiple of 8 pixels
///   2. seconds per step with the same batch; they take turns, so that a slower phase of the machine slows all
///   3. the training of each, from the same seed, into the folder OUTPUT/VARIANT
/// Prints the table and writes index.html, memory.svg, loss.svg and results.json into the output folder
/// (train/report.h). Returns 0, or 128 + the signal that stopped it: then there is no report.
int compare(Options options, const std::string& title);

}  // namespace palimpsest::cli
