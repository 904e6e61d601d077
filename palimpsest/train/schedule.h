#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::train {

/// How the learning rate moves from step to step. With t = (step - w) / (total_steps - w), where w is the
/// number of warm-up steps, so that t runs from 0 to just below 1:
///   poly      lr * (1 - t)^power
///   linear    lr + (final_lr - lr) * t
///   cosine    final_lr + (lr - final_lr) * (cos(pi * t) + 1) / 2
///   step      lr * step_factor^floor(epoch / step_epochs), epochs counted from the start of the training
///   drops     lr * step_factor from t = 1/2 on, lr * step_factor^2 from t = 3/4 on
///   constant  lr
/// and during the warm-up lr * (step + 1) / (w + 1): no step is wasted on a rate of 0, and no jump follows
/// it. Sources: poly, Chen et al., "DeepLab", 2016; cosine, Loshchilov and Hutter, "SGDR", 2017 (without
/// restarts; Pleiss et al. print it for lr 0.1 over 100 epochs as 0.05 (cos(pi t / 100) + 1)); drops, Huang
/// et al., "Densely Connected Convolutional Networks", 2017; warm-up, Goyal et al., "Accurate, Large
/// Minibatch SGD", 2017.
struct ScheduleOptions {
  std::string kind = "poly";  ///< "poly", "step", "drops", "linear", "cosine", "constant"
  double power = 0.9;         ///< poly: lr * (1 - it/max)^power
  int64_t step_epochs = 30;   ///< step: lr * step_factor^(epoch / step_epochs)
  double step_factor = 0.1;   ///< step, drops
  double final_lr = 0;        ///< linear and cosine end here
  double warmup_epochs =
      0;  ///< linear from 0 to lr over these first epochs; a fraction is rounded to whole steps
};

/// Learning rate of step `step` in [0, total_steps). Throws Error(kUsage) as check_schedule does,
/// std::invalid_argument for a step out of range.
double learning_rate(const ScheduleOptions& options, double lr, int64_t step, int64_t total_steps,
                     int64_t steps_per_epoch);
std::vector<std::string> schedule_names();

/// Throws Error(kUsage): an unknown kind (with the nearest name), a value out of range, or a warm-up that
/// takes all of the training.
void check_schedule(const ScheduleOptions& options, int64_t total_steps, int64_t steps_per_epoch);

}  // namespace palimpsest::train
