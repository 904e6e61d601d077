#pragma once

#include "palimpsest/train/record.h"

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>

namespace palimpsest::train {

/// Shows a human how a run goes. On a terminal one line is redrawn, at most ten times a second:
///   [=======>            ] 37 %  step 370/1000  epoch 4/10  loss 0.8123  lr 0.00731  34.2 images/s  eta
///   0:12:05 ...
/// elsewhere (a file, a pipe) each logged step is a plain line of the same words. Evaluations and notes are
/// lines of their own on both. A line ends with "memory 512 MiB now, 840 MiB peak" where the counting
/// allocator is installed.
class Progress {
 public:
  /// `columns`: width of the terminal; 0: not a terminal.
  Progress(std::ostream& out, int columns, int64_t steps, int64_t epochs);
  ~Progress();  ///< ends an open bar, also when an exception passes
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

/// Width of the terminal behind stderr in characters; 0 when stderr is none.
int stderr_columns();

}  // namespace palimpsest::train
