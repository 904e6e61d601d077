#pragma once

#include "palimpsest/nn/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/relative_error.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace palimpsest::nn {

/// f64, the same arithmetic in another order.
constexpr double kSameMaths = testing::tolerance(DType::f64).relative_l2;

using testing::relative_error;
using testing::usage_error;

/// Seeded normal values, f64, a leaf that requires grad.
inline at::Tensor leaf(at::IntArrayRef shape, uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randn(shape, torch::kFloat64).mul_(2).add_(0.5).requires_grad_();
}

/// The names in the module's state dict, in its order.
inline std::vector<std::string> keys(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict(module)) names.push_back(name);
  return names;
}

}  // namespace palimpsest::nn
