#pragma once

#include "palimpsest/memory/timeline.h"
#include "palimpsest/train/record.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {

/// One side of a comparison.
struct ReportRun {
  std::string name;                                ///< e.g. the strategy
  std::vector<StepRecord> steps;                   ///< of the training
  std::vector<EvaluationRecord> evaluations;       ///< of the training
  std::optional<ExponentRecord> exponents;         ///< the last histogram of the training's gradients, if any
  int64_t kept_bytes = 0, peak_bytes = 0;          ///< of one step (memory/meter.h)
  double seconds_per_step = 0;                     ///< median
  int64_t largest_batch = 0;                       ///< that fits in Report::memory_bytes; 0: not searched
  std::vector<memory::Timeline::Sample> timeline;  ///< of one step
  std::vector<memory::Timeline::Mark> marks;

  double loss() const;  ///< mean training loss of the last 10 steps; NaN without steps
  /// Of the last evaluation: mean IoU, or top-1 accuracy of a classification, in [0, 1]; NaN without one.
  double score() const;
  /// The mean over the last three evaluations, which one lucky step does not decide; NaN with fewer.
  double settled_score() const;
};

/// An example and what each run makes of it.
struct ReportPicture {
  std::string name;
  at::Tensor image;                     ///< u8 (H, W, 3)
  at::Tensor truth;                     ///< (H, W) class ids, any integer type; ids without a colour are void
  std::vector<at::Tensor> predictions;  ///< one a run, as `truth`
};

/// Two or more runs of the same training, side by side; ratios are to the first.
struct Report {
  std::string title;
  std::vector<std::pair<std::string, std::string>> setup;  ///< what was run, as name and value
  std::vector<ReportRun> runs;
  int64_t memory_bytes = 0;  ///< that the largest batches were to fit in
  std::vector<ReportPicture> pictures;
  std::vector<std::string> class_names;
  at::Tensor class_colors;  ///< u8 (classes, 3); needed with pictures
};

/// The comparison as lines of plain text: kept MiB, peak MiB, seconds a step, loss, score, largest batch; a
/// column a run, and after the second and each later run its ratio to the first. MiB = 2^20 bytes.
std::string to_table(const Report& report);

/// Live bytes over the time of one step, and the training loss over steps, as SVG elements.
std::string memory_svg(const Report& report);
std::string loss_svg(const Report& report);

/// All figures of the report, exact, as JSON; curves of losses and scores included, timelines and pictures
/// not.
std::string to_json(const Report& report);

/// The page: one file without links, scripts or fonts of others, so that it opens offline and can be mailed.
std::string to_html(const Report& report);

/// Writes index.html, memory.svg, loss.svg and results.json into `folder`, each atomically (Error(kOutput)).
void write_report(const std::filesystem::path& folder, const Report& report);

}  // namespace palimpsest::train
