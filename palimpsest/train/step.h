#pragma once

#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/amp/grad_scaler.h"
#include "palimpsest/amp/precision.h"
#include "palimpsest/memory/buffer_snapshot.h"
#include "palimpsest/train/loss_scale.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace palimpsest::train {

struct StepOptions {
  amp::Precision precision = amp::Precision::kF32;
  LossScale loss_scale = {};  ///< used where the precision needs one (amp::needs_loss_scale)
};

/// The training step, in any precision: forward pass, loss, backward pass, update.
///
///   train::Step step(*net, {.precision = amp::Precision::kBF16});
///   while (auto batch = loader.next())
///     step.run(sgd, [&] {
///       return train::loss(train::forward(net, batch->images, amp::Precision::kBF16), batch->targets, {});
///     });
///
/// In f32 and bf16 this is loss.backward(), optimizer.step(), optimizer.zero_grad(). In f16 the loss is
/// multiplied by a scale, and a step with a gradient that is not finite is skipped: parameters, optimizer and
/// running statistics are then as they were before the step.
class Step {
 public:
  explicit Step(const StepOptions& options = {});
  /// Also restores the buffers of `model` after a skipped step.
  explicit Step(const torch::nn::Module& model, const StepOptions& options = {});
  /// Restores the buffers of `model` after a skipped step. Without it running statistics that an overflow
  /// made infinite stay so. Needs a copy of the buffers, in f16 only.
  void restore_buffers_of(const torch::nn::Module& model);

  /// The parts of a step, in their order.
  enum class Phase { kForward, kBackward, kUpdate };
  struct RunOptions {
    bool observe = false;                      ///< fills observation()
    std::function<void(Phase)> entering = {};  ///< called at the beginning of each phase
  };
  /// Runs one step: computes the loss, its gradients and the update, and frees the gradients, so that the
  /// next forward pass can use their memory. Returns false if the step was skipped. An exception of `loss`
  /// passes through and leaves the parameters unchanged.
  bool run(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& loss,
           const RunOptions& options);
  bool run(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& loss) {
    return run(optimizer, loss, {});
  }

  /// The parts of run(), for several losses or optimizers per step, accumulated gradients or clipping:
  ///   begin; forward pass; for each loss: forward_done, backward; for each optimizer: update, zero_grad; end
  void begin(bool observe = false);
  /// Call it after the forward pass: libtorch's layers then keep no 16-bit copy of their weights for
  /// backward.
  void forward_done(const at::Tensor& loss);
  /// Computes the gradients of `loss`, which may be released afterwards.
  void backward(const at::Tensor& loss);
  /// Calls optimizer.step() unless a gradient is not finite in f16. `change_gradients`, if any, is called
  /// before it and sees unscaled gradients: clip there. Returns false if the update was skipped.
  bool update(torch::optim::Optimizer& optimizer, const std::function<void()>& change_gradients = {});
  /// Ends the step. Returns false if an update was skipped.
  bool end();

  bool scales() const { return scaler_.has_value(); }
  /// Scale of the next step's loss; 1 in f32 and bf16.
  double loss_scale() const { return scaler_ ? scaler_->get_scale() : 1; }
  int64_t steps_done() const { return steps_done_; }
  int64_t skipped_steps() const { return skipped_steps_; }  ///< of steps_done()
  int64_t skipped_in_a_row() const { return scaler_ ? scaler_->skipped_in_a_row() : 0; }
  /// Skipped steps in a row after which a smaller scale does not help: 50 halvings leave 2^-34 of 65536.
  static constexpr int64_t kHopeless = 50;
  bool is_hopeless() const { return skipped_in_a_row() >= kHopeless; }

  /// The unscaled gradients of a step by binary exponent.
  struct Observation {
    amp::ExponentHistogram activations;  ///< of the 16-bit tensors between layers
    amp::ExponentHistogram weights;      ///< of the parameters

    /// The constant scale that serves both; above 0.
    double recommended_scale() const;
  };
  /// The observation of the step in progress, else of the last one; nothing if it was not observed. An
  /// automatic loss scale observes the steps in which it is chosen.
  const std::optional<Observation>& observation() const { return observation_; }

  /// The state between two steps, for checkpoints.
  struct State {
    amp::GradScalerState scaler;
    int64_t skipped_steps = 0;
    bool choose = true;  ///< the next step chooses an automatic scale
  };
  /// Nothing in f32 and bf16.
  std::optional<State> state() const;
  /// Continues a training after `steps_done` steps. A checkpoint of f32 or bf16 has no `state`. A constant
  /// scale remains that of the options.
  void resume(int64_t steps_done, const std::optional<State>& state);

 private:
  StepOptions options_;
  std::optional<amp::GradScaler> scaler_;
  std::optional<memory::BufferSnapshot> buffers_;
  int64_t steps_done_ = 0, skipped_steps_ = 0;
  bool choose_;           // an automatic scale, in this step or the next
  bool skipped_ = false;  // an update of this step
  std::optional<Observation> observation_;
};

}  // namespace palimpsest::train
