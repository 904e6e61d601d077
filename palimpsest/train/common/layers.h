#pragma once

#include <string>
#include <string_view>
#include <vector>

// Settings that name layers of a network: "body.layer1" names all parameters "body.layer1.…".
namespace palimpsest::train {

/// Returns whether `name` is `layer` itself or the name of something in it: "body.layer1.0.bn1" lies in
/// "body.layer1", "body.layer10" does not.
bool lies_in(std::string_view name, std::string_view layer);

/// Throws Error(kUsage) unless a parameter of `names` lies in `layer`. The message begins with `setting` and
/// has the nearest name of a layer or parameter, and the outermost layers.
void require_layer(const std::string& setting, const std::string& layer,
                   const std::vector<std::string>& names);

}  // namespace palimpsest::train
