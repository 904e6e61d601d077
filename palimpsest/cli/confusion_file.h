#pragma once

#include "palimpsest/cli/options.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// The confusion matrix of eval, (classes, classes): the true class is the row, the predicted class the column.
namespace palimpsest::cli {

/// Throws Error(kUsage) if --confusion is neither a .csv nor a .json file, and Error(kOutput) as
/// check_output_file does. Changes nothing.
void check_confusion_file(const Options& options);

/// Writes the matrix to options.run.confusion, atomically. CSV (RFC 4180): a line of the predicted classes, then
/// a line per true class, which begins with its name. JSON: {"classes": [names], "confusion": [[row], ...]}.
void write_confusion(const Options& options, const std::vector<int64_t>& confusion);

/// Returns the matrix as an array of rows.
nlohmann::ordered_json confusion_rows(const std::vector<int64_t>& confusion);

}  // namespace palimpsest::cli
