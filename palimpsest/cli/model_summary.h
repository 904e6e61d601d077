#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace palimpsest::cli {

/// One module that owns parameters, as a forward pass uses it.
struct LayerSummary {
  std::string name;             ///< "layer1.0.conv1"
  std::string shape;            ///< of the weight: "64x3x7x7"
  std::vector<int64_t> output;  ///< shape of the output; empty if the pass did not show it
  int64_t parameters = 0;
  /// Multiplications and additions, as one operation, of a convolution or a linear layer for one image of the
  /// batch; 0 for other layers. Papers count so: biases, normalizations, activations and poolings are left out.
  int64_t multiply_adds = 0;
};

/// Lists the modules of `model` that own parameters, in module order, with the shapes of their outputs in
/// `forward`. libtorch has no forward hooks in C++, but it shows the inputs of each operator to an observer.
/// An operator that reads the weight of a module counts as the module. Strategy `standard` shows all layers; an
/// operator that runs several layers at once shows one of them.
std::vector<LayerSummary> summarize(const torch::nn::Module& model, const std::function<void()>& forward);

}  // namespace palimpsest::cli
