#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <utility>
#include <vector>

namespace palimpsest::nn {

/// Every parameter and buffer with its dotted name, in the order of Python's Module.state_dict(): each
/// module's parameters, then its buffers, then its children. The tensors are the module's own, not copies.
std::vector<std::pair<std::string, at::Tensor>> state_dict(const torch::nn::Module& module);

}  // namespace palimpsest::nn
