#pragma once

#include "palimpsest/train/report.h"

#include <string>
#include <vector>

namespace palimpsest::train {

/// Returns the names of the classes of a run, "class 0", ... where they are not known.
std::vector<std::string> class_names_of(const ReportRun& run);

/// Returns the IoU of each class in each run, as a table with bars and the colours of the pictures: one table
/// per set of classes. "" if no run labels pixels.
std::string class_iou_html(const Report& report);

/// Returns the confusion matrix of each run, the rows as shares of the truth: a heat map, a table of the most
/// frequent confusions, and up to 30 classes a table of all. "" if no run has one.
std::string confusion_html(const Report& report);

}  // namespace palimpsest::train
