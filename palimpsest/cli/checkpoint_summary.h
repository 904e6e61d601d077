#pragma once

#include "palimpsest/cli/options.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace palimpsest::cli {

/// What a file of weights says of its network and its training. Its metadata and its configuration, which
/// `options` hold, are enough: no network is made.
struct CheckpointSummary {
  std::string path;
  std::string network;                   ///< describe_network()
  std::vector<std::string> class_names;  ///< may be empty
  std::string strategy;
  int64_t step = -1;              ///< steps done; -1: the file holds weights alone
  int64_t steps = -1;             ///< of the whole run; -1: not known
  int64_t epoch = 0, epochs = 0;  ///< in which the last step was, from 1; of the whole run
  bool folded = false;
  std::string data, training;  ///< "image_folder PATH, ...", "batch 8, SGD with lr 0.1, ..."
};

/// Throws Error(kCheckpoint) if the file cannot be read.
CheckpointSummary summarize_checkpoint(const Options& options);

/// Returns lines of the form "classes     cat, dog".
std::string to_text(const CheckpointSummary& summary);
/// Returns {"checkpoint": path, "step": 18, "epoch": 2, ...}. A number that is not known is null.
nlohmann::ordered_json to_json(const CheckpointSummary& summary, const Options& options);

}  // namespace palimpsest::cli
