#pragma once

#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/amp/grad_scaler.h"
#include "palimpsest/amp/precision.h"
#include "palimpsest/distributed/data_parallel.h"
#include "palimpsest/memory/buffer_snapshot.h"
#include "palimpsest/train/loss_scale.h"
#include "palimpsest/train/network.h"

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
///     step.run(sgd, [&] { return train::loss(step.forward(net, batch->images), batch->targets, {}); });
///
/// It works with any module and with any optimizer whose step() needs no closure. torch::optim::LBFGS needs
/// one: run() and update() throw Error(kUsage) for it.
///
/// In f32 and bf16 it calls loss.backward(), optimizer.step() and optimizer.zero_grad(). In f16 the loss is
/// multiplied by a scale, and a step with a gradient that is not finite is skipped: parameters and optimizer
/// stay as they were before the step, and so do the buffers of `model` (running statistics), if given.
class Step {
 public:
  explicit Step(const StepOptions& options = {});
  /// Calls restore_buffers_of(model).
  explicit Step(const torch::nn::Module& model, const StepOptions& options = {});
  /// Lets a skipped step restore the buffers of `model`. Otherwise running statistics that an overflow made
  /// infinite stay infinite. Costs a copy of the buffers, in f16 only.
  void restore_buffers_of(const torch::nn::Module& model);

  /// Computes the logits in the precision of the step (train::forward), and returns them as f32. A forward pass in f16
  /// and a step in f32 would have no loss scale.
  at::Tensor forward(const Network& network, const at::Tensor& images) const;
  amp::Precision precision() const { return options_.precision; }

  /// Lets the ranks of `group` take the same steps. From now on backward() calls parallel.prepare(loss), so
  /// that gradients are averages over the ranks: all ranks then skip the same steps, because they see the
  /// same gradients. The histograms of an observation count the gradients of all ranks, so that all choose
  /// the same automatic scale. Both objects must outlive this one. Every rank runs each step.
  void synchronize(distributed::Group& group, distributed::DataParallel& parallel);

  /// The parts of a step, in their order.
  enum class Phase { kForward, kBackward, kUpdate };
  /// Returns "forward", "backward" or "step", as marks of a memory::Timeline have it.
  static const char* name_of(Phase phase);
  struct RunOptions {
    bool observe = false;                         ///< fills observation()
    std::function<void(Phase)> entering = {};     ///< called at the beginning of each phase
    std::function<void()> change_gradients = {};  ///< update() calls it
  };
  /// Runs one step: computes the loss, its gradients and the update, and frees the gradients, so that the
  /// next forward pass can use their memory. Returns false if the step was skipped. An exception passes
  /// through, frees the gradients, and leaves the parameters unchanged unless it comes from optimizer.step().
  bool run(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& loss,
           const RunOptions& options);
  bool run(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& loss) {
    return run(optimizer, loss, {});
  }
  /// Does the same with gradients that are the sums of those of `parts` losses: calls loss_of_part(0),
  /// loss_of_part(1), ..., and computes the gradients of each before it calls the next (train/step_loss.h).
  /// Each part enters the phases kForward and kBackward. With several ranks, gradients are averaged in the last
  /// part.
  bool run_parts(torch::optim::Optimizer& optimizer, int64_t parts,
                 const std::function<at::Tensor(int64_t part)>& loss_of_part, const RunOptions& options);

  /// The parts of run(), for several losses or optimizers per step, accumulated gradients or clipping:
  ///   begin; forward pass; for each loss: forward_done, backward; for each optimizer: update, zero_grad; end
  void begin(bool observe = false);
  /// Drops the 16-bit copies of weights that libtorch's layers saved for backward. Call it after the forward
  /// pass.
  void forward_done(const at::Tensor& loss);
  /// Computes the gradients of `loss`, which may be released afterwards, and adds them to those of earlier
  /// calls. With several ranks, gradients are averaged only if `is_last`: the last call of a step.
  void backward(const at::Tensor& loss, bool is_last = true);
  /// Calls optimizer.step(), except in f16 if a gradient is not finite. Before that it calls
  /// `change_gradients`, if any, which sees unscaled gradients: clip them there. Returns false if the update
  /// was skipped.
  bool update(torch::optim::Optimizer& optimizer, const std::function<void()>& change_gradients = {});
  /// Ends the step. Returns false if an update was skipped. With a group, an observed step has 2 collectives
  /// here.
  bool end();

  /// Returns whether the precision needs a loss scale.
  bool scales() const { return scaler_.has_value(); }
  /// Returns the scale of the next step's loss; 1 in f32 and bf16.
  double loss_scale() const { return scaler_ ? scaler_->get_scale() : 1; }
  int64_t steps_done() const { return steps_done_; }
  int64_t skipped_steps() const { return skipped_steps_; }  ///< of steps_done()
  int64_t skipped_in_a_row() const { return scaler_ ? scaler_->skipped_in_a_row() : 0; }
  /// Skipped steps in a row after which no smaller scale helps: 50 halvings turn 65536 into 2^-34.
  static constexpr int64_t kHopeless = 50;
  bool is_hopeless() const { return skipped_in_a_row() >= kHopeless; }

  /// The unscaled gradients of a step by binary exponent.
  struct Observation {
    amp::ExponentHistogram activations;  ///< of the 16-bit tensors between layers
    amp::ExponentHistogram weights;      ///< of the parameters

    /// Returns the constant scale, above 0, that is right for both histograms.
    double recommended_scale() const;
  };
  /// Returns the observation of the step in progress, else of the last step; nothing if that step was not
  /// observed. Steps in which an automatic loss scale is chosen are observed.
  const std::optional<Observation>& observation() const { return observation_; }

  /// The state between two steps, for checkpoints.
  struct State {
    amp::GradScalerState scaler;
    int64_t skipped_steps = 0;
    bool choose = true;  ///< the next step chooses an automatic scale
  };
  /// Returns nothing in f32 and bf16.
  std::optional<State> state() const;
  /// Continues a training after `steps_done` steps. A checkpoint of f32 or bf16 has no `state`. A constant
  /// scale stays as the options have it.
  void resume(int64_t steps_done, const std::optional<State>& state);

 private:
  void compute_gradients(const at::Tensor& loss);

  StepOptions options_;
  std::optional<amp::GradScaler> scaler_;
  std::optional<memory::BufferSnapshot> buffers_;
  distributed::Group* group_ = nullptr;  // null: this process alone
  distributed::DataParallel* parallel_ = nullptr;
  int64_t steps_done_ = 0, skipped_steps_ = 0;
  bool choose_;           // an automatic scale, in this step or the next
  bool skipped_ = false;  // an update of this step
  std::optional<Observation> observation_;
};

}  // namespace palimpsest::train
