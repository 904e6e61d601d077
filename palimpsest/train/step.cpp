#include "palimpsest/train/step.h"

#include "palimpsest/amp/drop_weight_copies.h"
#include "palimpsest/train/common/require.h"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <type_traits>

namespace palimpsest::train {
namespace {

amp::GradScaler make_scaler(const LossScale& scale) {
  if (scale.kind == LossScale::Kind::kConstant) return amp::GradScaler::constant(scale.constant);
  amp::GradScalerOptions options;
  // An automatic scale grows only when it is chosen again.
  if (scale.kind == LossScale::Kind::kAuto) options.growth_interval = std::numeric_limits<int32_t>::max();
  return amp::GradScaler(options);
}

/// Returns the sum of the histograms of all ranks.
amp::ExponentHistogram add_ranks(distributed::Group& group, const amp::ExponentHistogram& mine) {
  static_assert(std::is_trivially_copyable_v<amp::ExponentHistogram>);
  std::string bytes(sizeof mine, '\0');
  std::memcpy(bytes.data(), &mine, sizeof mine);
  amp::ExponentHistogram all;
  for (const std::string& of_rank : group.all_gather_bytes(bytes, "the histogram of the gradients")) {
    amp::ExponentHistogram one;
    std::memcpy(&one, of_rank.data(), sizeof one);
    all.add(one);
  }
  return all;
}

void refuse_closure(const torch::optim::Optimizer& optimizer) {
  require(
      !dynamic_cast<const torch::optim::LBFGS*>(&optimizer),
      "a training step calls optimizer.step() without a closure, got LBFGS, which needs one: take another "
      "optimizer, such as SGD or Adam, or call step(closure) of LBFGS yourself instead of train::Step");
}

}  // namespace

double Step::Observation::recommended_scale() const {
  // A histogram of zeros only recommends no scale.
  if (activations.bars().exponents.empty()) return weights.recommended_scale();
  if (weights.bars().exponents.empty()) return activations.recommended_scale();
  return std::min(activations.recommended_scale(), weights.recommended_scale());
}

Step::Step(const StepOptions& options)
    : options_(options), choose_(options.loss_scale.kind == LossScale::Kind::kAuto) {
  if (amp::needs_loss_scale(options.precision)) scaler_.emplace(make_scaler(options.loss_scale));
}

Step::Step(const torch::nn::Module& model, const StepOptions& options) : Step(options) {
  restore_buffers_of(model);
}

void Step::restore_buffers_of(const torch::nn::Module& model) {
  if (scaler_) buffers_.emplace(model.buffers());
}

at::Tensor Step::forward(const Network& network, const at::Tensor& images) const {
  return train::forward(network, images, options_.precision);
}

void Step::synchronize(distributed::Group& group, distributed::DataParallel& parallel) {
  group_ = &group;
  parallel_ = &parallel;
}

const char* Step::name_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kUpdate:
      return "step";
  }
  return "?";
}

bool Step::run(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& loss,
               const RunOptions& options) {
  return run_parts(optimizer, 1, [&](int64_t /*part*/) { return loss(); }, options);
}

bool Step::run_parts(torch::optim::Optimizer& optimizer, int64_t parts,
                     const std::function<at::Tensor(int64_t part)>& loss_of_part, const RunOptions& options) {
  refuse_closure(optimizer);  // before the work of the forward pass
  const auto enter = [&](Phase phase) {
    if (options.entering) options.entering(phase);
  };
  begin(options.observe);
  bool has_gradients = false;
  try {
    for (int64_t part = 0; part < parts; ++part) {
      enter(Phase::kForward);
      at::Tensor value = loss_of_part(part);
      forward_done(value);
      enter(Phase::kBackward);
      has_gradients = true;
      backward(value, part == parts - 1);
    }
    enter(Phase::kUpdate);
    update(optimizer, options.change_gradients);
  } catch (...) {
    // The next step must not add to the gradients of this one, nor begin with its statistics.
    const std::exception_ptr first = std::current_exception();
    try {
      if (has_gradients) optimizer.zero_grad();
      if (buffers_) buffers_->restore();
    } catch (...) {
      // A device that has failed runs nothing any more: the first error tells why.
      std::rethrow_exception(first);
    }
    throw;
  }
  optimizer.zero_grad();
  return end();
}

void Step::begin(bool observe) {
  if (buffers_) buffers_->save();
  if (scaler_) scaler_->abandon();  // a step that an exception cut short, such as one without memory
  if (options_.loss_scale.kind == LossScale::Kind::kAuto && steps_done_ % LossScale::kChooseEvery == 0)
    choose_ = true;
  skipped_ = false;
  observation_.reset();
  if (observe || (scaler_ && choose_)) observation_.emplace();
}

void Step::forward_done(const at::Tensor& loss) {
  if (options_.precision != amp::Precision::kF32) amp::drop_weight_copies(loss);
}

void Step::backward(const at::Tensor& loss, bool is_last) {
  if (parallel_ && !is_last) {
    const auto apart = parallel_->no_sync();
    compute_gradients(loss);
    return;
  }
  if (parallel_) parallel_->prepare(loss);
  compute_gradients(loss);
}

void Step::compute_gradients(const at::Tensor& loss) {
  const at::Tensor scaled = scaler_ ? scaler_->scale(loss) : loss;
  if (observation_) amp::observe_activation_gradients(scaled, observation_->activations, loss_scale());
  scaled.backward();
}

bool Step::update(torch::optim::Optimizer& optimizer, const std::function<void()>& change_gradients) {
  refuse_closure(optimizer);
  if (scaler_) scaler_->unscale_(optimizer);
  if (observation_) observation_->weights.add_gradients(optimizer);
  if (change_gradients) change_gradients();
  if (!scaler_) {
    optimizer.step();
    return true;
  }
  const bool stepped = scaler_->step(optimizer);
  skipped_ = skipped_ || !stepped;
  return stepped;
}

bool Step::end() {
  ++steps_done_;
  // The weights' gradients are the same on all ranks already.
  if (group_ && observation_) observation_->activations = add_ranks(*group_, observation_->activations);
  if (!scaler_) return true;
  if (skipped_) {
    if (buffers_) buffers_->restore();
    ++skipped_steps_;
    choose_ = options_.loss_scale.kind == LossScale::Kind::kAuto;
  } else if (choose_) {
    scaler_->update(observation_->recommended_scale());
    choose_ = false;
    return true;
  }
  scaler_->update();
  return !skipped_;
}

std::optional<Step::State> Step::state() const {
  if (!scaler_) return std::nullopt;
  return State{scaler_->state(), skipped_steps_, choose_};
}

void Step::resume(int64_t steps_done, const std::optional<State>& state) {
  steps_done_ = steps_done;
  if (!scaler_ || !state) return;
  amp::GradScalerState scaler = state->scaler;
  if (!scaler_->options().dynamic) scaler.scale = scaler_->get_scale();
  scaler_->load(scaler);
  skipped_steps_ = state->skipped_steps;
  choose_ = options_.loss_scale.kind == LossScale::Kind::kAuto && state->choose;
}

}  // namespace palimpsest::train
