#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace palimpsest::cli {

/// One module that owns parameters, as a forward pass met it.
struct LayerInfo {
  std::string name;             ///< "layer1.0.conv1"
  std::string shape;            ///< of the weight: "64x3x7x7"
  std::vector<int64_t> output;  ///< shape of what it made; empty when the pass did not show it
  int64_t parameters = 0;
};

/// The modules of `model` that own parameters, in module order. Output shapes are seen while `forward` runs:
/// libtorch has no forward hooks in C++, but tells an observer of each operator's inputs, among which a
/// weight tells its module.
std::vector<LayerInfo> list_layers(const torch::nn::Module& model, const std::function<void()>& forward);

}  // namespace palimpsest::cli
