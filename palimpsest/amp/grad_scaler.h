#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

/// Loss scaling, with the same steps as Python's `torch.amp.GradScaler`. Gradients of f16 training are often
/// below 2^-24, where f16 loses them. The loss is multiplied by a scale, which lifts all gradients, and the
/// gradients are divided by the scale before the optimizer reads them.
///
///   amp::GradScaler scaler;
///   scaler.scale(loss).backward();   // several times, to accumulate gradients
///   scaler.unscale_(sgd);            // only if your code reads gradients, for example to clip them
///   torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
///   scaler.step(sgd);                // skips the step if a gradient is infinite or NaN
///   scaler.update();                 // once, after the steps of all optimizers
///   sgd.zero_grad();
///
/// Sources: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2 (constant scales);
/// PyTorch (the dynamic scale).
namespace palimpsest::amp {

struct GradScalerOptions {
  double init_scale = 65536;  ///< above 0
  /// false: the scale is constant. A step that overflows is skipped in both cases.
  bool dynamic = true;
  double growth_factor = 2;        ///< multiplies the scale after `growth_interval` steps; above 1
  double backoff_factor = 0.5;     ///< multiplies the scale after an overflow; in (0, 1)
  int64_t growth_interval = 2000;  ///< steps in a row without overflow; at least 1
};

/// The state of a scaler between two iterations, for checkpoints.
struct GradScalerState {
  double scale = 0;
  int64_t growth_tracker = 0;    ///< steps without overflow since the scale changed
  int64_t skipped_in_a_row = 0;  ///< GradScaler::skipped_in_a_row()
  bool operator==(const GradScalerState&) const = default;
};

/// Scales the loss and unscales the gradients. Its state is on the device of the gradients: the host waits
/// for the device in step(), once. The functions that return a number wait only after an iteration with
/// unscale_ and without step, whose outcome the host does not know. Throws Error(kUsage) for options out of
/// range; for unscale_ twice per iteration or after step; for step twice without update; for step or update
/// without a gradient; and for f16 parameters, because f16 would lose their gradients again when they are
/// unscaled (keep parameters in f32, or use amp/master_weights.h).
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});
  /// Returns a scaler whose scale never changes.
  static GradScaler constant(double scale);

  /// Returns tensor * scale. The result for a 16-bit scalar, such as a loss, is f32.
  at::Tensor scale(const at::Tensor& tensor);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& tensors);

  /// Divides the gradients of `optimizer`'s parameters by the scale, and notes whether one is not finite. The
  /// host does not wait. Call it at most once per iteration; step() calls it if you did not. Converts 16-bit
  /// gradients of f32 parameters (amp/gradient_dtype.h) to f32.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Calls optimizer.step() and returns true. If a gradient is not finite, it changes neither parameters nor
  /// optimizer and returns false. The host waits for the device.
  bool step(torch::optim::Optimizer& optimizer);

  /// Ends the iteration: a dynamic scale shrinks if any step was skipped, and grows after `growth_interval`
  /// iterations without a skipped step.
  void update();
  /// Ends the iteration and sets the scale.
  void update(double new_scale);

  /// Forgets an iteration that an exception cut short; scale and counts stay.
  void abandon();

  /// Makes all ranks of a group skip the same steps: every unscale_ calls `reduce` with a scalar f32 tensor,
  /// which is above 0 if this rank found an overflow, else 0. `reduce` must overwrite it with the sum or the
  /// maximum over the group.
  void reduce_found_inf_with(std::function<void(at::Tensor& found_inf)> reduce) {
    reduce_ = std::move(reduce);
  }

  double get_scale() const;
  /// Returns the number of the latest iterations in a row with a skipped step. If there are many, no scale
  /// will help.
  int64_t skipped_in_a_row() const { return skipped_in_a_row_; }
  const GradScalerOptions& options() const { return options_; }

  GradScalerState state() const;
  /// Continues from `state`. Call it between two iterations. If the state is of a scaler with a larger
  /// growth_interval, and this one's has passed, the scale grows after the next step. Throws Error(kUsage)
  /// unless its scale is above 0 and finite.
  void load(const GradScalerState& state);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    at::Tensor found_inf;  // scalar f32 on the scale's device; above 0 if a gradient is not finite
  };

  struct OnHost {
    float scale = 0;
    int64_t growth_tracker = 0;
  };

  void place(const at::Tensor& like);
  const OnHost& on_host() const;
  void update_on_host();
  void end_iteration();

  GradScalerOptions options_;
  std::function<void(at::Tensor&)> reduce_;
  double initial_scale_;
  int64_t initial_tracker_ = 0;
  at::Tensor scale_, growth_tracker_;  // scalars, f32 and i32, on the device of the first scaled tensor
  // The values of both, as long as the host knows them: step() tells it what update() does on the device.
  mutable std::optional<OnHost> on_host_;
  std::map<const torch::optim::Optimizer*, OptimizerState> optimizers_;  // in this iteration
  bool skipped_ = false;                                                 // a step of this iteration
  int64_t skipped_in_a_row_ = 0;
};

}  // namespace palimpsest::amp
