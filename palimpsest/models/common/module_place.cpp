#include "palimpsest/models/common/module_place.h"

#include <memory>

namespace palimpsest::models {

ModulePlace place_below(torch::nn::Module& parent, const std::string& name) {
  const auto dot = name.find('.');
  if (dot == std::string::npos) return {parent, name};
  const std::string first = name.substr(0, dot);
  const auto children = parent.named_children();
  const auto* found = children.find(first);
  const auto holder =
      found ? *found : parent.register_module(first, std::make_shared<torch::nn::Module>(first));
  return {*holder, name.substr(dot + 1)};
}

}  // namespace palimpsest::models
