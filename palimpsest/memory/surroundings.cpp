#include "palimpsest/memory/surroundings.h"

#include "palimpsest/base/wide_maths.h"

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

Surroundings::Autocast Surroundings::Autocast::now() {
  Autocast state{};
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    state.enabled[i] = at::autocast::is_autocast_enabled(kAutocastDevices[i]);
    state.dtype[i] = at::autocast::get_autocast_dtype(kAutocastDevices[i]);
  }
  state.cache = at::autocast::is_autocast_cache_enabled();
  state.wide_maths = palimpsest::wide_maths();
  return state;
}

void Surroundings::Autocast::apply() const {
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kAutocastDevices[i], enabled[i]);
    at::autocast::set_autocast_dtype(kAutocastDevices[i], dtype[i]);
  }
  at::autocast::set_autocast_cache_enabled(cache);
  set_wide_maths(wide_maths);
}

Surroundings::Generator Surroundings::Generator::now(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto state = generator.get_state();
  return {std::move(generator), std::move(state)};
}

void Surroundings::Generator::apply() {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

Surroundings::Surroundings(const std::vector<at::Tensor>& inputs, bool random) : autocast_(Autocast::now()) {
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

void Surroundings::drop_unused_generators() {
  std::erase_if(generators_,
                [](const Generator& g) { return g.state.equal(Generator::now(g.generator).state); });
}

SurroundingsGuard::SurroundingsGuard(const Surroundings& noted)
    : autocast_before_(Surroundings::Autocast::now()) {
  for (const auto& g : noted.generators_) {
    generators_before_.push_back(Surroundings::Generator::now(g.generator));
  }
  at::autocast::increment_nesting();
  noted.autocast_.apply();
  for (auto g : noted.generators_) g.apply();
}

SurroundingsGuard::~SurroundingsGuard() {
  for (auto& g : generators_before_) g.apply();
  // Autocast caches the 16-bit copies of weights until its outermost scope ends. Left behind, those of a
  // second run would be used after the optimizer has changed the weights.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  autocast_before_.apply();
}

BuffersGuard::BuffersGuard(const std::vector<at::Tensor>& buffers) {
  for (const auto& buffer : buffers) {
    if (buffer.defined()) buffers_.push_back({buffer, buffer.detach().clone()});
  }
}

BuffersGuard::~BuffersGuard() {
  // variable_data() has a version counter of its own, and detached values record nothing.
  for (auto& [buffer, values] : buffers_) buffer.variable_data().copy_(values);
}

}  // namespace palimpsest::memory
