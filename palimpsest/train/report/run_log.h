#pragma once

#include "palimpsest/train/records.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {

/// log.jsonl: one JSON object per line, with "type" ("step", "evaluation", "exponents", "bad_image" or "end")
/// and the members of the record under their own names; a number that is not finite is null, and an optional
/// member without a value is left out. The operating system has a line before the call returns, so a killed
/// program loses no line. A full disk throws Error(kOutput) that names the file.
class RunLog {
 public:
  RunLog() = default;  ///< writes nothing
  /// Begins an empty log, or with step >= 0 continues a log: it removes the lines after `step`, which the
  /// checkpoint does not contain, the end of the run, and a last line that a kill or a full disk cut off. So
  /// no step appears twice.
  explicit RunLog(std::filesystem::path path, int64_t step = -1);
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  void write(const StepRecord& record);
  void write(const EvaluationRecord& record);
  /// Writes a histogram as its shares (values, zero, lost, recoverable, above) and its bars. Each of `bars`
  /// is the share of one exponent; `lowest` is the exponent of the first bar.
  void write(const ExponentRecord& record);
  void write(const BadImageRecord& record);
  void write(const EndRecord& record);
  /// Returns the step of the last evaluation in the log; -1: none.
  int64_t evaluated_step() const { return last_evaluation_ ? last_evaluation_->step : -1; }
  /// Returns the last evaluation in the log. One of an earlier run has step, loss, segmentation, mean IoU and
  /// top-1 only; an infinite loss has become NaN.
  const std::optional<EvaluationRecord>& last_evaluation() const { return last_evaluation_; }

 private:
  void write_line(const std::string& line);

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::optional<EvaluationRecord> last_evaluation_;
};

/// The records of a log.
struct LogContents {
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  std::optional<ExponentRecord> exponents;  ///< the last ones
  std::optional<EndRecord> end;
  int64_t damaged_lines = 0;       ///< that were left out
  int64_t first_damaged_line = 0;  ///< counted from 1
};

/// Reads a log, of an older program too: members that a line lacks keep their defaults, lines of another type
/// are passed over, and a last line that is being written is left out. Throws Error(kData) if the file cannot
/// be read.
LogContents read_run_log(const std::filesystem::path& path);

}  // namespace palimpsest::train
