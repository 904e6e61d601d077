#include "palimpsest/train/frozen.h"

#include "palimpsest/train/common/layers.h"
#include "palimpsest/train/common/require.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace palimpsest::train {

namespace {

/// Returns the parameters of the layers that have a gradient so far.
std::vector<at::Tensor> parameters_in(const torch::nn::Module& module,
                                      const std::vector<std::string>& layers) {
  const auto parameters = module.named_parameters();
  std::vector<at::Tensor> found;
  std::set<std::string> frozen;
  for (const std::string& layer : layers) {
    require_layer("freeze", layer, parameters.keys());
    bool any = false;
    for (const auto& parameter : parameters) {
      if (!lies_in(parameter.key(), layer) || !frozen.insert(parameter.key()).second) continue;
      any = true;
      if (parameter.value().requires_grad()) found.push_back(parameter.value());
    }
    require(any, fmt::format("freeze names '{}', which another of its names freezes already: leave it out",
                             layer));
  }
  return found;
}

bool has_statistics(const torch::nn::Module& module) {
  return module.named_buffers(/*recurse=*/false).contains("running_mean");
}

}  // namespace

Frozen::Frozen(torch::nn::Module& module, const FrozenOptions& options)
    : parameters_(parameters_in(module, options.layers)) {
  bool any = false;
  module.apply([&](const std::string& name, torch::nn::Module& child) {
    if (!has_statistics(child)) return;
    any = true;
    const bool lies_in_layer = std::any_of(options.layers.begin(), options.layers.end(),
                                           [&](const std::string& layer) { return lies_in(name, layer); });
    if ((options.norm || lies_in_layer) && child.is_training()) statistics_.push_back(&child);
  });
  require(!options.norm || any,
          "freeze_norm needs a network with running statistics, and this one has none: leave it out");
  for (const at::Tensor& parameter : parameters_) parameter.set_requires_grad(false);
  for (torch::nn::Module* norm : statistics_) norm->eval();
}

Frozen::~Frozen() {
  for (const at::Tensor& parameter : parameters_) parameter.set_requires_grad(true);
  for (torch::nn::Module* module : statistics_) module->train();
}

}  // namespace palimpsest::train
