#pragma once

#include "palimpsest/memory/timeline.h"
#include "palimpsest/train/records.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {

/// One of the runs of a report. What is not known is empty, 0 or NaN, and the page says so or leaves it out.
struct ReportRun {
  std::string name;                                           ///< e.g. the strategy, or the run's folder
  std::vector<std::string> notes;                             ///< sentences about the run: "unfinished: ..."
  std::vector<std::pair<std::string, std::string>> settings;  ///< name, value
  std::vector<std::string> class_names;                       ///< of `evaluations` without `details`
  std::vector<StepRecord> steps;                              ///< of the training
  std::vector<EvaluationRecord> evaluations;                  ///< of the training
  std::optional<EvaluationDetails> details;                   ///< of the last evaluation
  std::optional<ExponentRecord> exponents;         ///< the last histogram of the training's gradients, if any
  int64_t kept_bytes = 0, peak_bytes = 0;          ///< of one step (memory/meter.h)
  double seconds_per_step = 0;                     ///< median; 0: not known
  double training_seconds = 0;                     ///< of the training with its evaluations; 0: not measured
  int64_t largest_batch = 0;                       ///< that fits in Report::memory_bytes; 0: not searched
  std::vector<memory::Timeline::Sample> timeline;  ///< of one step
  std::vector<memory::Timeline::Mark> marks;

  double loss() const;  ///< mean training loss of the last 10 steps; NaN without steps
  /// Mean IoU (segmentation) or top-1 accuracy (classification) of the last evaluation, in [0, 1]; NaN if
  /// there is none.
  double score() const;
  /// Mean score of the last three evaluations, so that one lucky step does not decide; NaN if there are
  /// fewer.
  double settled_score() const;
};

/// Runs side by side. Ratios are to the first run. The runs may be of different networks, data and tasks.
struct Report {
  std::string title;
  std::vector<std::pair<std::string, std::string>> setup;  ///< settings that all runs share: name, value
  std::vector<ReportRun> runs;
  int64_t memory_bytes = 0;  ///< limit of the search for the largest batches; 0: not searched
  std::string time_note;     ///< how seconds_per_step was measured: "median over ..."
};

/// Returns whether `folder` holds a run: log.jsonl, checkpoint.safetensors or config.toml.
bool is_run_folder(const std::filesystem::path& folder);
/// Returns whether `file` lies in such a folder and has the name of a file that a training writes there:
/// checkpoint, best checkpoint, log, configuration, or a file of details or events.
bool is_file_of_run(const std::filesystem::path& file);
/// Reads a run from the files that its training wrote into `folder` (train/trainer.h), all but its settings.
/// The run may be at work, unfinished, or of an older program; files may be missing or damaged. The notes of
/// the result tell the reader of each of these. Throws Error(kData) only if the log cannot be read at all.
ReportRun read_run(const std::filesystem::path& folder, const std::string& name);

/// Formats the comparison as plain text, one column per run and, after each run but the first, a column with
/// its ratio to the first. Rows: kept MiB, peak MiB, seconds per step, loss, score, largest batch. MiB = 2^20
/// bytes.
std::string to_table(const Report& report);

/// Draws the live bytes over the time of one step, and the training loss over steps, as SVG elements.
std::string memory_svg(const Report& report);
std::string loss_svg(const Report& report);

/// Returns all exact figures and the curves of losses and scores as JSON, without timelines and pictures.
std::string to_json(const Report& report);

/// Returns the HTML page: figures, curves, memory over one step, IoU per class, confusion matrices, pictures
/// with truth and predictions, settings and their differences, as far as they are known. It has no script and
/// refers to no other file, so it opens offline and can be mailed. It is light or dark as the reader's system
/// is, and from 400 pixels on nothing but tables and maps of many classes is scrolled sideways.
std::string to_html(const Report& report);

/// Writes index.html, memory.svg, loss.svg and results.json into `folder`, each atomically. Throws
/// Error(kOutput) if a file cannot be written.
void write_report(const std::filesystem::path& folder, const Report& report);

}  // namespace palimpsest::train
