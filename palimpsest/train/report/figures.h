#pragma once

#include "palimpsest/train/report.h"

#include <string>
#include <vector>

namespace palimpsest::train {

inline constexpr double kMiB = 1 << 20;
inline constexpr int kChartWidth = 480, kChartHeight = 300;  ///< pixels of a chart: its text fits a telephone
inline constexpr int kLossSteps = 10;                        ///< steps that ReportRun::loss() averages
inline constexpr int kSettledEvaluations = 3;  ///< evaluations that ReportRun::settled_score() averages

/// One line of the table of figures.
struct FigureRow {
  std::string label;
  std::vector<double> values;  ///< one per run; NaN: not known
  int decimals;
};
std::vector<FigureRow> figure_rows(const Report& report);
/// Returns the cells of a row as text: the value of the first run, then value and ratio of each other run.
std::vector<std::string> figure_cells(const FigureRow& row);
/// Returns the headings of these cells.
std::vector<std::string> figure_columns(const Report& report);

/// Returns "12.3"; "-" for a value that is not finite.
std::string number_text(double value, int decimals);
/// Returns whether the first run that was evaluated labels pixels (mean IoU) rather than images (top-1
/// accuracy).
bool is_segmentation(const Report& report);
/// Returns mean IoU or top-1 accuracy, in [0, 1].
double score_of(const EvaluationRecord& evaluation);

}  // namespace palimpsest::train
