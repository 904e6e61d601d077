#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::train {

struct ScheduleOptions {
  std::string kind = "poly";  ///< "poly", "step", "linear", "cosine", "constant"
  double power = 0.9;         ///< poly: lr * (1 - it/max)^power
  int64_t step_epochs = 30;   ///< step: lr * step_factor^(epoch / step_epochs)
  double step_factor = 0.1;
  double final_lr = 0;        ///< linear and cosine end here
  double warmup_epochs = 0;   ///< linear from 0 to lr over these first epochs
};

/// Learning rate of step `step` in [0, total_steps).
double learning_rate(const ScheduleOptions& options, double lr, int64_t step, int64_t total_steps, int64_t steps_per_epoch);
std::vector<std::string> schedule_names();

}  // namespace palimpsest::train
