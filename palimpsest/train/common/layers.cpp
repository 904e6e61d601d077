#include "palimpsest/train/common/layers.h"

#include "palimpsest/base/nearest_name.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/train/common/require.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace palimpsest::train {

bool lies_in(std::string_view name, std::string_view layer) {
  return !layer.empty() && name.starts_with(layer) &&
         (name.size() == layer.size() || name[layer.size()] == '.');
}

void require_layer(const std::string& setting, const std::string& layer,
                   const std::vector<std::string>& names) {
  if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return lies_in(name, layer); })) return;
  std::set<std::string> layers, outermost;
  for (const std::string& name : names) {
    outermost.insert(name.substr(0, name.find('.')));
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      layers.insert(name.substr(0, dot));
    layers.insert(name);
  }
  const std::vector<std::string> candidates(layers.begin(), layers.end());
  const std::string nearest = nearest_name(layer, candidates);
  require(false, fmt::format("{} names '{}', which is no layer or parameter of the network{} (outermost: {})",
                             setting, printable(shortened(layer, 100)),
                             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest),
                             fmt::join(outermost, ", ")));
}

}  // namespace palimpsest::train
