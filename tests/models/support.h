#pragma once

#include "palimpsest/models/registry.h"
#include "palimpsest/nn/state_dict.h"
#include "tests/support/expect_error.h"
#include "tests/support/relative_error.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

namespace palimpsest::models {

using testing::kReorderedNetworkF64;
using testing::relative_error;
using testing::usage_error;

/// Values in [-1, 1) that look random and are a formula of (series, place), in exact integer arithmetic, so
/// that a program in another language can make the same: x = (48271 j + 69621 series + 12345) mod p, p = 2^31
/// - 1, then three times x <- (x (x mod 65536 + 1) + 11) mod p; the value is x / (p / 2) - 1.
inline at::Tensor values_by_formula(int64_t count, int64_t series) {
  constexpr int64_t p = 2147483647;
  auto x = (torch::arange(count, torch::kInt64) * 48271 + series * 69621 + 12345).remainder(p);
  for (int round = 0; round < 3; ++round) x = (x * (x.remainder(65536) + 1) + 11).remainder(p);
  return x.to(torch::kFloat64) / (p / 2.0) - 1;
}

/// Fills entry i of the state dict with w = values_by_formula(size, i): matrices and convolutions scaled by
/// sqrt(2 / fan_in), other weights and running variances as 1 + 0.3 w, the rest as 0.1 w. The model becomes
/// f64.
inline void fill_by_formula(torch::nn::Module& model) {
  torch::NoGradGuard no_grad;
  model.to(torch::kFloat64);
  int64_t i = 0;
  for (auto& [name, tensor] : nn::state_dict(model)) {
    const int64_t series = i++;
    if (!tensor.is_floating_point()) continue;
    auto w = values_by_formula(tensor.numel(), series).reshape(tensor.sizes());
    if (tensor.dim() > 1) {
      w *= std::sqrt(2.0 * static_cast<double>(tensor.size(0)) / static_cast<double>(tensor.numel()));
    } else if (name.ends_with("weight") || name.ends_with("running_var")) {
      w = 1 + 0.3 * w;
    } else {
      w *= 0.1;
    }
    tensor.copy_(w);
  }
}

/// Returns the side of small images for the network: 32, or the least that it takes.
inline int64_t small_side(const std::string& name) {
  return name == "alexnet" ? 63 : name == "inception_v3" ? 75 : 32;
}

/// Expects dropout: in training the logits follow libtorch's generator, in eval mode they do not.
inline void expect_dropout(nn::Model& model, const at::Tensor& images, const std::string& name) {
  const at::NoGradGuard no_grad;
  const auto logits = [&](uint64_t seed) {
    torch::manual_seed(seed);
    return model.forward(images);
  };
  EXPECT_TRUE(torch::equal(logits(2), logits(2))) << name;
  EXPECT_FALSE(torch::equal(logits(2), logits(3))) << name;
  model.eval();
  EXPECT_TRUE(torch::equal(logits(2), logits(3))) << name;
}

/// Two f64 images: values_by_formula(size, 0).
inline at::Tensor images_by_formula(int64_t side = 64) {
  return values_by_formula(2 * 3 * side * side, 0).reshape({2, 3, side, side});
}

}  // namespace palimpsest::models
