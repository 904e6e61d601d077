#pragma once

#include "palimpsest/train/record.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace palimpsest::train {

/// log.jsonl: one JSON object a line, with "type" ("step", "evaluation" or "exponents") and the members of
/// the record under their own names; a number that is not finite is null. Each line is with the operating
/// system before the call returns, so a killed program loses none; a full disk throws Error(kOutput) naming
/// the file.
class RunLog {
 public:
  RunLog() = default;  ///< writes nothing
  /// Begins an empty log, or (step >= 0) continues one: lines after `step`, which the checkpoint does not
  /// know of, and a last line cut off by a kill or a full disk are removed, so that no step appears twice.
  explicit RunLog(std::filesystem::path path, int64_t step = -1);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void write(const StepRecord& record);
  void write(const EvaluationRecord& record);
  /// A histogram as its shares (values, zero, lost, recoverable, above) and bars: lowest, the exponent of the
  /// first of `bars`, each the share of one exponent.
  void write(const ExponentRecord& record);
  /// Step of the last evaluation in the log; -1: none.
  int64_t evaluated_step() const { return evaluated_step_; }

 private:
  void write_line(const std::string& line);

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t evaluated_step_ = -1;
};

}  // namespace palimpsest::train
