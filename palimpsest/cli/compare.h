#pragma once

#include "palimpsest/cli/options.h"

#include <string>

namespace palimpsest::cli {

/// Compares options.compare.strategies on one training, in this order:
///   memory of one warm step, and the largest batch in options.compare.memory (else in the first one's peak):
///   each strategy alone; seconds a step: the strategies in turn, so that a machine that slows down slows
///   all; then the training of each, from the same seed, into the folder OUTPUT/STRATEGY.
/// Ends with the table on standard output, and index.html, memory.svg, loss.svg and results.json in the
/// output folder (train/report.h). Returns 0, or 128 + the signal that stopped it: then there is no report.
int compare(Options options, const std::string& title);

}  // namespace palimpsest::cli
