#include "palimpsest/amp/grad_scaler.h"

#include "palimpsest/base/error.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

namespace palimpsest::amp {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::kUsage, "[GradScaler] " + message);
}

void check_scale(double scale) {
  if (!(std::isfinite(static_cast<float>(scale)) && static_cast<float>(scale) > 0))
    fail(fmt::format("the scale must be above 0 and finite in f32, got {}", scale));
}

GradScalerOptions checked(const GradScalerOptions& o) {
  check_scale(o.init_scale);
  if (!o.dynamic) return o;
  if (!(o.growth_factor > 1 && std::isfinite(o.growth_factor)))
    fail(fmt::format("growth_factor must be above 1, got {}", o.growth_factor));
  if (!(o.backoff_factor > 0 && o.backoff_factor < 1))
    fail(fmt::format("backoff_factor must be in (0, 1), got {}", o.backoff_factor));
  if (o.growth_interval < 1)
    fail(fmt::format("growth_interval must be at least 1, got {}", o.growth_interval));
  return o;
}

/// Returns the values of the gradient of `parameter`, in a type that can be unscaled. Undefined if there is
/// no gradient.
at::Tensor values_to_unscale(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return {};
  if (parameter.scalar_type() == at::kHalf)
    fail(
        "parameters must not be f16, whose gradients would be lost again by being unscaled: keep them in f32 "
        "under an AutocastGuard, or in f32 beside the model (amp::MasterWeights)");
  if (gradient.scalar_type() != parameter.scalar_type()) {
    // Adds in f32, because the sum of a sparse gradient's duplicates could overflow in f16.
    gradient = gradient.to(parameter.scalar_type());
  }
  return gradient.is_sparse() ? gradient._values() : gradient;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(checked(options)), initial_scale_(options.init_scale) {}

GradScaler GradScaler::constant(double scale) {
  GradScalerOptions options;
  options.init_scale = scale;
  options.dynamic = false;
  return GradScaler(options);
}

void GradScaler::place(const at::Tensor& like) {
  if (scale_.defined()) return;
  scale_ = at::full({}, initial_scale_, like.options().dtype(at::kFloat));
  growth_tracker_ = at::full({}, initial_tracker_, like.options().dtype(at::kInt));
  on_host_ = OnHost{static_cast<float>(initial_scale_), initial_tracker_};
}

at::Tensor GradScaler::scale(const at::Tensor& tensor) {
  place(tensor);
  return tensor * scale_.to(tensor.device(), /*non_blocking=*/true);
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> scaled;
  scaled.reserve(tensors.size());
  for (const auto& tensor : tensors) scaled.push_back(scale(tensor));
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  OptimizerState& state = optimizers_[&optimizer];
  if (state.stage == Stage::kUnscaled)
    fail("unscale_ must come once per iteration, was called twice before update");
  if (state.stage == Stage::kStepped) fail("unscale_ must come before step, was called after it");
  if (!scale_.defined()) fail("nothing was scaled yet: call backward on scale(loss)");

  const at::NoGradGuard no_grad;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> groups;  // by device and type
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (const at::Tensor values = values_to_unscale(parameter); values.defined())
        groups[{values.device().str(), values.scalar_type()}].push_back(values);
  if (groups.empty())
    fail("no parameter of the optimizer has a gradient: call backward on scale(loss) first");

  // Computes in f64: the reciprocal of an f32 may be imprecise, depending on how libtorch was compiled.
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  state.found_inf = at::zeros_like(scale_);
  for (auto& [key, gradients] : groups) {
    const at::Device device = gradients[0].device();
    at::Tensor found = at::zeros({}, inverse.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found,
                                                   inverse.to(device, /*non_blocking=*/true));
    state.found_inf.add_(found.to(scale_.device(), /*non_blocking=*/true));
  }
  if (reduce_) reduce_(state.found_inf);
  state.stage = Stage::kUnscaled;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  const auto found = optimizers_.find(&optimizer);
  if (found != optimizers_.end() && found->second.stage == Stage::kStepped)
    fail("step must come once per iteration, was called twice before update");
  if (found == optimizers_.end() || found->second.stage == Stage::kReady) unscale_(optimizer);
  OptimizerState& state = optimizers_[&optimizer];
  state.stage = Stage::kStepped;
  if (state.found_inf.item<float>() > 0) {
    skipped_ = true;
    return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::update() {
  at::Tensor found_inf;
  for (const auto& [optimizer, state] : optimizers_)
    if (state.found_inf.defined())
      found_inf = found_inf.defined() ? found_inf + state.found_inf : state.found_inf;
  if (!found_inf.defined()) fail("update must come after step (or unscale_), and there was none");
  if (options_.dynamic) update_on_host();
  if (options_.dynamic)
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor,
                           options_.backoff_factor, options_.growth_interval);
  end_iteration();
}

const GradScaler::OnHost& GradScaler::on_host() const {
  if (!on_host_) on_host_ = OnHost{scale_.item<float>(), growth_tracker_.item<int32_t>()};
  return *on_host_;
}

/// Follows at::_amp_update_scale_, in its arithmetic.
void GradScaler::update_on_host() {
  for (const auto& [optimizer, state] : optimizers_)
    if (state.stage != Stage::kStepped) on_host_.reset();
  if (!on_host_) return;
  auto& [scale, tracker] = *on_host_;
  if (skipped_) {
    scale = static_cast<float>(scale * options_.backoff_factor);
    tracker = 0;
  } else if (++tracker == options_.growth_interval) {
    if (const auto grown = static_cast<float>(scale * options_.growth_factor); std::isfinite(grown))
      scale = grown;
    tracker = 0;
  }
}

void GradScaler::update(double new_scale) {
  check_scale(new_scale);
  initial_scale_ = new_scale;
  if (scale_.defined()) {
    const int64_t tracker = on_host().growth_tracker;
    scale_.fill_(new_scale);
    on_host_ = OnHost{static_cast<float>(new_scale), tracker};
  }
  end_iteration();
}

void GradScaler::end_iteration() {
  skipped_in_a_row_ = skipped_ ? skipped_in_a_row_ + 1 : 0;
  skipped_ = false;
  optimizers_.clear();
}

void GradScaler::abandon() {
  optimizers_.clear();
  skipped_ = false;
}

double GradScaler::get_scale() const {
  return scale_.defined() ? static_cast<double>(on_host().scale) : initial_scale_;
}

GradScalerState GradScaler::state() const {
  return {get_scale(), growth_tracker_.defined() ? on_host().growth_tracker : initial_tracker_,
          skipped_in_a_row_};
}

void GradScaler::load(const GradScalerState& state) {
  check_scale(state.scale);
  // The scale grows when the tracker equals the interval: it would never do so from above.
  const int64_t tracker = std::min(state.growth_tracker, options_.growth_interval - 1);
  initial_scale_ = state.scale;
  initial_tracker_ = tracker;
  skipped_in_a_row_ = state.skipped_in_a_row;
  optimizers_.clear();
  skipped_ = false;
  if (!scale_.defined()) return;
  scale_.fill_(state.scale);
  growth_tracker_.fill_(tracker);
  on_host_ = OnHost{static_cast<float>(state.scale), tracker};
}

}  // namespace palimpsest::amp
