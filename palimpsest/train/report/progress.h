#pragma once

#include "palimpsest/train/records.h"

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace palimpsest::train {

/// Shows the progress of a run. A terminal has one line that is redrawn at most ten times per second:
///   [=======>            ]  37 %  step 370/1000  epoch 4/10  loss 0.8123  lr 0.00731  34.2 images/s  ...
/// A file or a pipe gets a plain line with the same words for each logged step. Evaluations and notes are
/// lines of their own. After the images per second come "eta 0:12:05" and, if the counting allocator is
/// installed, "memory 512 MiB now, 840 MiB peak". A narrow terminal loses whole parts: the bar first, then
/// memory, lr, percentage, epoch and loss. 60 columns show step, loss, images per second and eta.
class Progress {
 public:
  /// `columns`: width of the terminal; 0: not a terminal.
  Progress(std::ostream& out, int columns, int64_t steps, int64_t epochs);
  ~Progress();  ///< ends an open bar, also during an exception
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepRecord& record, bool logged);
  void evaluation(const EvaluationRecord& record);
  void note(const std::string& text);

 private:
  void line(const std::string& text);

  std::ostream& out_;
  int columns_;
  int64_t steps_, epochs_;
  bool bar_open_ = false;
  std::chrono::steady_clock::time_point drawn_;
};

/// Returns "12:05:09": hours, minutes and seconds.
std::string duration_text(double seconds);

/// Width in characters of the terminal behind stderr; 0 if stderr is not a terminal.
int stderr_columns();

}  // namespace palimpsest::train
