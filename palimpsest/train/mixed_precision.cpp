#include "palimpsest/train/mixed_precision.h"

#include "palimpsest/amp/drop_weight_copies.h"
#include "palimpsest/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace palimpsest::train {

namespace {

amp::GradScaler make_scaler(const LossScale& scale) {
  if (scale.kind == LossScale::Kind::kConstant) return amp::GradScaler::constant(scale.constant);
  amp::GradScalerOptions options;
  // An automatic scale grows by being chosen anew.
  if (scale.kind == LossScale::Kind::kAuto) options.growth_interval = std::numeric_limits<int32_t>::max();
  return amp::GradScaler(options);
}

}  // namespace

LossScale parse_loss_scale(const std::string& text, const std::string& where) {
  if (text == "dynamic") return {LossScale::Kind::kDynamic};
  if (text == "auto") return {LossScale::Kind::kAuto};
  LossScale scale{LossScale::Kind::kConstant};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), scale.constant);
  const auto as_f32 = static_cast<float>(scale.constant);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(as_f32) || !(as_f32 > 0))
    throw Error(
        ErrorKind::kUsage,
        fmt::format("{} must be 'dynamic', 'auto' or a finite number above 0, got '{}'", where, text));
  return scale;
}

double MixedPrecision::Observation::recommended_scale() const {
  // A histogram of nothing but zeros asks for nothing.
  if (activations.bars().exponents.empty()) return weights.recommended_scale();
  if (weights.bars().exponents.empty()) return activations.recommended_scale();
  return std::min(activations.recommended_scale(), weights.recommended_scale());
}

MixedPrecision::MixedPrecision(const torch::nn::Module& model, amp::Precision precision,
                               const LossScale& scale)
    : precision_(precision), scale_(scale), choose_(scale.kind == LossScale::Kind::kAuto) {
  if (!amp::needs_loss_scale(precision)) return;
  scaler_.emplace(make_scaler(scale));
  buffers_.emplace(model.buffers());
}

void MixedPrecision::begin(int64_t step, bool observe) {
  if (buffers_) buffers_->save();
  if (scaler_ && scale_.kind == LossScale::Kind::kAuto && step % LossScale::kChooseEvery == 0) choose_ = true;
  observation_.reset();
  if (observe || (scaler_ && choose_)) observation_.emplace();
}

void MixedPrecision::forward_done(const at::Tensor& loss) {
  if (precision_ != amp::Precision::kF32) amp::drop_weight_copies(loss);
}

void MixedPrecision::backward(const at::Tensor& loss) {
  const at::Tensor scaled = scaler_ ? scaler_->scale(loss) : loss;
  if (observation_) amp::observe_activation_gradients(scaled, observation_->activations, loss_scale());
  scaled.backward();
}

bool MixedPrecision::step(torch::optim::Optimizer& optimizer) {
  if (scaler_) scaler_->unscale_(optimizer);
  if (observation_) observation_->weights.add_gradients(optimizer);
  if (!scaler_) {
    optimizer.step();
    return true;
  }
  const bool stepped = scaler_->step(optimizer);
  if (!stepped) {
    buffers_->restore();
    ++skipped_steps_;
    observation_.reset();
    choose_ = scale_.kind == LossScale::Kind::kAuto;
  } else if (choose_) {
    scaler_->update(observation_->recommended_scale());
    choose_ = false;
    return true;
  }
  scaler_->update();
  return stepped;
}

std::optional<MixedPrecision::State> MixedPrecision::state() const {
  if (!scaler_) return std::nullopt;
  return State{scaler_->state(), skipped_steps_, choose_};
}

void MixedPrecision::load(const State& state) {
  if (!scaler_) return;
  amp::GradScalerState scaler = state.scaler;
  if (!scaler_->options().dynamic) scaler.scale = scaler_->get_scale();
  scaler_->load(scaler);
  skipped_steps_ = state.skipped_steps;
  choose_ = scale_.kind == LossScale::Kind::kAuto && state.choose;
}

}  // namespace palimpsest::train
