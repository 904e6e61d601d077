#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

/// Loss scaling, as Python's `torch.amp.GradScaler` does it, step by step (tests/amp/scaler_test.py compares
/// 500 steps). The gradients of f16 training are often below 2^-24 and would vanish; those of a loss that is
/// multiplied by a scale are not, and are divided by it before the optimizer sees them.
///
///   amp::GradScaler scaler;
///   scaler.scale(loss).backward();          // as often as gradients are to be accumulated
///   scaler.unscale_(sgd);                   // only if you look at gradients yourself: to clip them, say
///   torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
///   scaler.step(sgd);                       // skips the step if a gradient is infinite or NaN
///   scaler.update();                        // once, after the steps of all optimizers
///   sgd.zero_grad();
///
/// Sources: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2 (constant scales); the
/// dynamic rule is that of PyTorch.
namespace palimpsest::amp {

struct GradScalerOptions {
  double init_scale = 65536;  ///< above 0
  /// false: the scale stays as it is. A step that overflows is skipped all the same.
  bool dynamic = true;
  double growth_factor = 2;        ///< after `growth_interval` steps without overflow; above 1
  double backoff_factor = 0.5;     ///< after one with; in (0, 1)
  int64_t growth_interval = 2000;  ///< steps; at least 1
};

/// All that a scaler knows between two iterations, for checkpoints.
struct GradScalerState {
  double scale = 0;
  int64_t growth_tracker = 0;    ///< steps without overflow since the last change
  int64_t skipped_in_a_row = 0;  ///< iterations, up to the last one, in which a step was skipped
  bool operator==(const GradScalerState&) const = default;
};

/// The state of an iteration is on the device of the gradients: only step() (and what returns a number here)
/// waits for it. Errors, as Error(kUsage): options out of range; unscale_ twice, or after step; step twice
/// without update; step or update without a gradient; f16 parameters, whose gradients would be lost again by
/// being unscaled (keep parameters in f32, or see amp/persistent_copies.h).
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});
  /// A scaler whose scale never moves.
  static GradScaler constant(double scale);

  /// tensor * scale; of a 16-bit scalar, as a loss is, in f32.
  at::Tensor scale(const at::Tensor& tensor);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& tensors);

  /// Divides the gradients of `optimizer`'s parameters by the scale and notes whether one is not finite; no
  /// host synchronization. Once an iteration; step() does it if you did not. 16-bit gradients of f32
  /// parameters (amp/gradients.h) are f32 afterwards.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// optimizer.step(), unless a gradient is not finite: then nothing of parameters or optimizer changes.
  /// Whether it stepped: this is where the host waits for the device.
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends the iteration: a dynamic scale shrinks if any step was skipped, and grows after `growth_interval`
  /// steps without.
  void update();
  /// Ends the iteration and sets the scale.
  void update(double new_scale);

  /// Makes ranks of a group skip together: `reduce` is called by every unscale_ with a scalar f32 tensor, 0
  /// or more, above 0 where this rank found an overflow, and must write the group's sum or maximum over it.
  void reduce_found_inf_with(std::function<void(at::Tensor& found_inf)> reduce) {
    reduce_ = std::move(reduce);
  }

  double get_scale() const;
  /// Iterations, up to the last one, in which a step was skipped: after many, no scale will help.
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  const GradScalerOptions& options() const { return options_; }

  GradScalerState state() const;
  /// Continues from `state`, between two iterations. Throws Error(kUsage) if its scale is none.
  void load(const GradScalerState& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    at::Tensor found_inf;  // scalar f32 on the scale's device: above 0 if a gradient is not finite
  };

  void place(const at::Tensor& like);
  void end_iteration();

  GradScalerOptions options_;
  std::function<void(at::Tensor&)> reduce_;
  double initial_scale_;
  int64_t initial_tracker_ = 0;
  at::Tensor scale_, growth_tracker_;  // scalars, f32 and i32, on the device of the first scaled tensor
  std::map<const torch::optim::Optimizer*, OptimizerState> optimizers_;  // of this iteration
  bool skipped_ = false;                                                 // a step of this iteration
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace palimpsest::amp
