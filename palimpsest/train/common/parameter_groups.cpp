#include "palimpsest/train/common/parameter_groups.h"

#include "palimpsest/base/printable.h"
#include "palimpsest/train/common/layers.h"
#include "palimpsest/train/common/require.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <utility>

namespace palimpsest::train {
namespace {

std::vector<LayerFactor> parse_layer_factors(const std::vector<std::string>& texts) {
  std::vector<LayerFactor> factors;
  std::set<std::string> layers;
  for (const std::string& text : texts) {
    factors.push_back(parse_layer_factor(text));
    require(layers.insert(factors.back().layer).second,
            fmt::format("lr_factors must name a layer once, got '{}' twice",
                        printable(shortened(factors.back().layer, 100))));
  }
  return factors;
}

/// Returns the entry with the longest layer that holds the parameter, or null.
const LayerFactor* factor_of(const std::vector<LayerFactor>& factors, const std::string& parameter) {
  const LayerFactor* found = nullptr;
  for (const LayerFactor& entry : factors)
    if (lies_in(parameter, entry.layer) && (!found || entry.layer.size() > found->layer.size()))
      found = &entry;
  return found;
}

}  // namespace

constexpr double kLargestFactor = 1e8;  // times a learning rate of at most 1e30 it is an f32

LayerFactor parse_layer_factor(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  LayerFactor parsed;
  bool good = equals != std::string_view::npos && equals > 0;
  if (good) {
    parsed.layer = text.substr(0, equals);
    const std::string_view number = text.substr(equals + 1);
    const auto [end, failure] = std::from_chars(number.data(), number.data() + number.size(), parsed.factor);
    good = failure == std::errc() && end == number.data() + number.size() && parsed.factor > 0 &&
           parsed.factor <= kLargestFactor;
  }
  require(good,
          fmt::format(
              "lr_factors must be LAYER=FACTOR with a FACTOR > 0 and at most 1e8, such as classifier=10, got "
              "'{}' (to keep a layer as it is, freeze it)",
              printable(shortened(text, 100))));
  return parsed;
}

std::vector<ParameterGroup> parameter_groups(const torch::nn::Module& model,
                                             const OptimizerOptions& options) {
  const auto factors = parse_layer_factors(options.lr_factors);
  const auto names = model.named_parameters().keys();
  for (const LayerFactor& entry : factors) require_layer("lr_factors", entry.layer, names);
  require(!names.empty(), "the model has no parameters: there is nothing to train");

  std::map<std::pair<bool, double>, ParameterGroup> groups;  // by (has no decay, factor)
  std::set<const void*> seen;
  std::set<const LayerFactor*> used;
  model.apply([&](const std::string& module_name, const torch::nn::Module& module) {
    const bool is_norm = is_normalization(module);
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& p = parameter.value();
      if (!p.defined() || !p.requires_grad() || !seen.insert(p.unsafeGetTensorImpl()).second) continue;
      const std::string name = module_name.empty() ? parameter.key() : module_name + "." + parameter.key();
      const LayerFactor* entry = factor_of(factors, name);
      used.insert(entry);
      const bool decays =
          (options.decay_norm || !is_norm) && (options.decay_bias || is_norm || parameter.key() != "bias");
      const double factor = entry ? entry->factor : 1;
      ParameterGroup& group = groups[{!decays, factor}];
      group.lr_factor = factor;
      group.decays = decays;
      group.parameters.push_back(p);
    }
  });
  require(!seen.empty(),
          "all parameters of the model are frozen: there is nothing to train; name fewer of them in [train] "
          "freeze (--freeze)");
  for (const LayerFactor& entry : factors)
    require(used.contains(&entry),
            fmt::format("lr_factors names '{}', which has no effect: its parameters are frozen or have "
                        "factors of their own",
                        entry.layer));
  std::vector<ParameterGroup> result;
  result.reserve(groups.size());
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

}  // namespace palimpsest::train
