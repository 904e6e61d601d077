#pragma once

#include <torch/nn/module.h>

#include <string>

namespace palimpsest::models {

/// The module that has a child, and the child's name there.
struct ModulePlace {
  torch::nn::Module& holder;
  std::string name;
};

/// Returns the place of the child `name` below `parent`. The first part of a name of two parts ("features.0")
/// is that of a module in between, which is made if there is none.
ModulePlace place_below(torch::nn::Module& parent, const std::string& name);

/// Registers `module` in that place and returns it.
template <class Module>
Module register_below(torch::nn::Module& parent, const std::string& name, const Module& module) {
  const ModulePlace place = place_below(parent, name);
  place.holder.register_module(place.name, module);
  return module;
}

}  // namespace palimpsest::models
