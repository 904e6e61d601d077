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

/// One of the runs that a report compares.
struct ReportRun {
  std::string name;                                ///< e.g. the strategy
  std::vector<StepRecord> steps;                   ///< of the training
  std::vector<EvaluationRecord> evaluations;       ///< of the training
  std::optional<ExponentRecord> exponents;         ///< the last histogram of the training's gradients, if any
  int64_t kept_bytes = 0, peak_bytes = 0;          ///< of one step (memory/meter.h)
  double seconds_per_step = 0;                     ///< median
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

/// An image and the prediction of each run.
struct ReportPicture {
  std::string name;
  at::Tensor image;                     ///< u8 (H, W, 3)
  at::Tensor truth;                     ///< (H, W) class ids, any integer type; ids without a colour are void
  std::vector<at::Tensor> predictions;  ///< one per run, as `truth`
};

/// Two or more runs of the same training, side by side. Ratios are to the first run.
struct Report {
  std::string title;
  std::vector<std::pair<std::string, std::string>> setup;  ///< settings that all runs share: name, value
  std::vector<ReportRun> runs;
  int64_t memory_bytes = 0;  ///< limit of the search for the largest batches
  std::vector<ReportPicture> pictures;
  std::vector<std::string> class_names;
  at::Tensor class_colors;  ///< u8 (classes, 3); needed with pictures
};

/// Formats the comparison as plain text, one column per run and, after each run but the first, a column with
/// its ratio to the first. Rows: kept MiB, peak MiB, seconds per step, loss, score, largest batch. MiB = 2^20
/// bytes.
std::string to_table(const Report& report);

/// Draws the live bytes over the time of one step, and the training loss over steps, as SVG elements.
std::string memory_svg(const Report& report);
std::string loss_svg(const Report& report);

/// Returns all exact figures and the curves of losses and scores as JSON, without timelines and pictures.
std::string to_json(const Report& report);

/// Returns the HTML page. It refers to no other file, so it opens offline and can be mailed.
std::string to_html(const Report& report);

/// Writes index.html, memory.svg, loss.svg and results.json into `folder`, each atomically. Throws
/// Error(kOutput) if a file cannot be written.
void write_report(const std::filesystem::path& folder, const Report& report);

}  // namespace palimpsest::train
