#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::cli {

/// One row of a table of the papers: a file of examples/paper, which the program carries.
struct PaperRow {
  std::string name;      ///< the file's name without .toml: "table3_wide_resnet38_cityscapes_fixed_crop"
  std::string title;     ///< its first line: paper, table, network, data
  std::string paper;     ///< "# paper:": what the paper reports
  std::string baseline;  ///< "# baseline:": the row, or the figure, that the paper compares it with; "": none
  std::string
      differs;  ///< "# differs:": how the network here is not the paper's; "": it is not known to differ
  /// "# small:": a file of examples/paper/small, then flags that differ from it: {"segmentation", "--spend",
  /// "batch"}.
  std::vector<std::string> small;
  /// "# gpus:": the paper's number of GPUs, of which each normalized over its own part of the batch; 1: no such line.
  int64_t gpus = 1;
  std::string recipe;  ///< the whole file
};

/// Returns all rows, sorted by name.
const std::vector<PaperRow>& paper_rows();
/// Throws Error(kUsage) with the nearest name for an unknown row.
const PaperRow& paper_row(std::string_view name);
/// Returns the text of the small recipe that a row names: examples/paper/small/NAME.toml.
std::string small_recipe(std::string_view name);

}  // namespace palimpsest::cli
