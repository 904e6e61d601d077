#include "palimpsest/memory/recompute/ambient_state.h"

#include "palimpsest/base/compute_in_f32.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace palimpsest::memory {
namespace {

constexpr std::array kAutocastDevices{at::kCPU, at::kCUDA};

}  // namespace

AmbientState::Autocast AmbientState::Autocast::now() {
  Autocast state{};
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    state.enabled[i] = at::autocast::is_autocast_enabled(kAutocastDevices[i]);
    state.dtype[i] = at::autocast::get_autocast_dtype(kAutocastDevices[i]);
  }
  state.cache = at::autocast::is_autocast_cache_enabled();
  state.compute_in_f32 = palimpsest::compute_in_f32();
  return state;
}

void AmbientState::Autocast::apply() const {
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kAutocastDevices[i], enabled[i]);
    at::autocast::set_autocast_dtype(kAutocastDevices[i], dtype[i]);
  }
  at::autocast::set_autocast_cache_enabled(cache);
  set_compute_in_f32(compute_in_f32);
}

AmbientState::Generator AmbientState::Generator::now(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto state = generator.get_state();
  return {std::move(generator), std::move(state)};
}

void AmbientState::Generator::apply() {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

AmbientState::AmbientState(const std::vector<at::Tensor>& inputs, bool random) : autocast_(Autocast::now()) {
  if (!random) return;
  std::vector<at::Device> devices{at::kCPU};
  for (const auto& input : inputs) {
    if (!input.defined() || std::ranges::count(devices, input.device()) > 0) continue;
    if (input.is_cuda() || input.is_xpu() || input.is_mps()) devices.push_back(input.device());
  }
  for (const auto device : devices) {
    generators_.push_back(Generator::now(at::globalContext().defaultGenerator(device)));
  }
}

void AmbientState::drop_unused_generators() {
  std::erase_if(generators_,
                [](const Generator& g) { return g.state.equal(Generator::now(g.generator).state); });
}

AmbientStateGuard::AmbientStateGuard(const AmbientState& state)
    : autocast_before_(AmbientState::Autocast::now()) {
  for (const auto& g : state.generators_) {
    generators_before_.push_back(AmbientState::Generator::now(g.generator));
  }
  at::autocast::increment_nesting();
  state.autocast_.apply();
  // The inputs of a second run are leaves, whose 16-bit copies autocast would keep to the end of its outermost scope.
  at::autocast::set_autocast_cache_enabled(false);
  for (auto g : state.generators_) g.apply();
}

AmbientStateGuard::~AmbientStateGuard() {
  for (auto& g : generators_before_) g.apply();
  // Autocast caches the 16-bit copies of weights until its outermost scope ends. Copies left by a second run
  // would be used after the optimizer has changed the weights.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  autocast_before_.apply();
}

}  // namespace palimpsest::memory
