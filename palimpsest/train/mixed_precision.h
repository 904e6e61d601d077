#pragma once

#include "palimpsest/amp/exponent_histogram.h"
#include "palimpsest/amp/grad_scaler.h"
#include "palimpsest/amp/precision.h"
#include "palimpsest/memory/buffer_snapshot.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>

namespace palimpsest::train {

/// How gradients are scaled where the precision needs it (amp::needs_loss_scale).
struct LossScale {
  enum class Kind {
    kDynamic,   ///< amp::GradScaler's rule
    kAuto,      ///< chosen from the gradients: amp::ExponentHistogram::recommended_scale, every kChooseEvery
                ///< steps
    kConstant,  ///< `constant`
  };
  Kind kind = Kind::kDynamic;
  double constant = 0;

  /// Steps between two choices of an automatic scale; after a step that overflowed it is chosen anew at once.
  static constexpr int64_t kChooseEvery = 100;
};

/// "dynamic", "auto" or a number. Throws Error(kUsage), beginning with `where`, unless the number is above 0
/// and finite in f32.
LossScale parse_loss_scale(const std::string& text, const std::string& where = "loss_scale");

/// What lies between a loss and the parameters' update, in any precision. In f32 and bf16 that is
/// loss.backward() and optimizer.step(). In f16 the loss is scaled, and a step with a gradient that is not
/// finite is skipped: parameters, momentum and running statistics are then as before it.
class MixedPrecision {
 public:
  MixedPrecision(const torch::nn::Module& model, amp::Precision precision, const LossScale& scale);

  /// Before the forward pass of the step with number `step`, from 0. `observe`: look at its gradients.
  void begin(int64_t step, bool observe = false);
  /// Right after the forward pass: no layer keeps a 16-bit copy of its weights for backward any longer.
  void forward_done(const at::Tensor& loss);
  /// Gradients of `loss`, which may be released afterwards.
  void backward(const at::Tensor& loss);
  /// The optimizer's step; false if it was skipped. Gradients stay: zero them.
  bool step(torch::optim::Optimizer& optimizer);

  bool scales() const { return scaler_.has_value(); }
  double loss_scale() const { return scaler_ ? scaler_->get_scale() : 1; }
  int64_t skipped_in_a_row() const { return scaler_ ? scaler_->skipped_in_a_row() : 0; }
  int64_t skipped_steps() const { return skipped_steps_; }  ///< in all

  /// The unscaled gradients of a step: of 16-bit activations, and of parameters.
  struct Observation {
    amp::ExponentHistogram activations, weights;

    /// A constant scale for both; above 0.
    double recommended_scale() const;
  };
  /// Of the last step, if it was to be observed and was not skipped.
  const std::optional<Observation>& observation() const { return observation_; }

  /// For checkpoints: nothing where there is no scale.
  struct State {
    amp::GradScalerState scaler;
    int64_t skipped_steps = 0;
    bool choose = true;  ///< an automatic scale is to be chosen in the next step
  };
  std::optional<State> state() const;
  /// Continues from `state`, where there is a scale; a constant one stays what it is.
  void load(const State& state);

 private:
  amp::Precision precision_;
  LossScale scale_;
  std::optional<amp::GradScaler> scaler_;
  std::optional<memory::BufferSnapshot> buffers_;
  int64_t skipped_steps_ = 0;
  bool choose_;  // the scale, in this step or the next
  std::optional<Observation> observation_;
};

}  // namespace palimpsest::train
