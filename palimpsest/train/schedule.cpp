#include "palimpsest/train/schedule.h"

#include "palimpsest/base/nearest_name.h"
#include "palimpsest/train/common/require.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace palimpsest::train {
namespace {

int64_t warmup_steps(const ScheduleOptions& options, int64_t steps_per_epoch) {
  // The bound is above any training's length: a larger product has no whole number.
  return std::llround(std::min(options.warmup_epochs * static_cast<double>(steps_per_epoch), 0x1p62));
}

}  // namespace

std::vector<std::string> schedule_names() {
  return {"poly", "step", "drops", "linear", "cosine", "constant"};
}

void check_schedule(const ScheduleOptions& options, int64_t total_steps, int64_t steps_per_epoch) {
  const auto names = schedule_names();
  require(std::find(names.begin(), names.end(), options.kind) != names.end(),
          unknown_name_message("schedule", options.kind, names));
  require(std::isfinite(options.power) && options.power > 0,
          fmt::format("schedule power must be above 0, got {}", options.power));
  require(options.step_epochs >= 1,
          fmt::format("step_epochs must be at least 1, got {}", options.step_epochs));
  require(options.step_factor > 0 && options.step_factor <= 1,
          fmt::format("step_factor must be in (0, 1], got {}", options.step_factor));
  require(std::isfinite(options.final_lr) && options.final_lr >= 0,
          fmt::format("final_lr must be at least 0, got {}", options.final_lr));
  require(std::isfinite(options.warmup_epochs) && options.warmup_epochs >= 0,
          fmt::format("warmup_epochs must be at least 0, got {}", options.warmup_epochs));
  require(
      warmup_steps(options, steps_per_epoch) < total_steps,
      fmt::format(
          "the warm-up must be shorter than the training: warmup_epochs {} are {} steps of {} per epoch, and "
          "the training has {}; set fewer",
          options.warmup_epochs, warmup_steps(options, steps_per_epoch), steps_per_epoch, total_steps));
}

double learning_rate(const ScheduleOptions& options, double lr, int64_t step, int64_t total_steps,
                     int64_t steps_per_epoch) {
  if (steps_per_epoch < 1 || step < 0 || step >= total_steps) {
    throw std::invalid_argument(
        fmt::format("step must be in [0, {}) with at least one step per epoch, got step {} and "
                    "{} steps per epoch",
                    total_steps, step, steps_per_epoch));
  }
  check_schedule(options, total_steps, steps_per_epoch);
  const int64_t warmup = warmup_steps(options, steps_per_epoch);
  if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);

  const double t = static_cast<double>(step - warmup) / static_cast<double>(total_steps - warmup);
  if (options.kind == "poly") return lr * std::pow(1 - t, options.power);
  if (options.kind == "linear") return lr + (options.final_lr - lr) * t;
  if (options.kind == "cosine") {
    return options.final_lr + (lr - options.final_lr) * (std::cos(std::numbers::pi * t) + 1) / 2;
  }
  if (options.kind == "step") {
    const int64_t drops = step / steps_per_epoch / options.step_epochs;
    return lr * std::pow(options.step_factor, static_cast<double>(drops));
  }
  if (options.kind == "drops") return lr * std::pow(options.step_factor, t < 0.5 ? 0 : t < 0.75 ? 1 : 2);
  return lr;  // constant
}

}  // namespace palimpsest::train
