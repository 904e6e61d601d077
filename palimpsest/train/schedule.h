#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::train {

/// The learning rate as a function of the step. With w warm-up steps, t = (step - w) / (total_steps - w) runs
/// from 0 to just below 1:
///   poly      lr * (1 - t)^power
///   linear    lr + (final_lr - lr) * t
///   cosine    final_lr + (lr - final_lr) * (cos(pi * t) + 1) / 2
///   step      lr * step_factor^floor(epoch / step_epochs), where epochs count from the start of the training
///   drops     lr from t = 0, lr * step_factor from t = 1/2, lr * step_factor^2 from t = 3/4
///   constant  lr
/// During the warm-up the rate is lr * (step + 1) / (w + 1): no step has rate 0, and no jump follows the
/// warm-up.
/// Sources: poly, Chen et al., "DeepLab", 2016; cosine, Loshchilov and Hutter, "SGDR", 2017 (without
/// restarts; Pleiss et al. print it for lr 0.1 over 100 epochs as 0.05 (cos(pi t / 100) + 1)); drops, Huang
/// et al., "Densely Connected Convolutional Networks", 2017; warm-up, Goyal et al., "Accurate, Large
/// Minibatch SGD", 2017.
struct ScheduleOptions {
  std::string kind = "poly";  ///< "poly", "step", "drops", "linear", "cosine", "constant"
  double power = 0.9;         ///< poly
  int64_t step_epochs = 30;   ///< step: epochs between drops
  double step_factor = 0.1;   ///< step, drops
  double final_lr = 0;        ///< linear, cosine: the rate at the end
  double warmup_epochs = 0;   ///< epochs over which the rate rises, rounded to whole steps
};

/// Returns the learning rate of step `step` in [0, total_steps). Throws Error(kUsage) as check_schedule does,
/// and std::invalid_argument for a step out of range.
double learning_rate(const ScheduleOptions& options, double lr, int64_t step, int64_t total_steps,
                     int64_t steps_per_epoch);
/// Returns the values of ScheduleOptions::kind.
std::vector<std::string> schedule_names();

/// Throws Error(kUsage) for an unknown kind (with the nearest name), a value out of range, or a warm-up that
/// takes the whole training.
void check_schedule(const ScheduleOptions& options, int64_t total_steps, int64_t steps_per_epoch);

}  // namespace palimpsest::train
