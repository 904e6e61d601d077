#pragma once

#include "palimpsest/base/error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>

namespace palimpsest::nn {

/// f64, the same maths in another order.
constexpr double kSameMaths = 1e-10;

/// ||got - want|| / ||want||, in f64.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const auto g = got.detach().to(torch::kFloat64), w = want.detach().to(torch::kFloat64);
  return ((g - w).norm() / (w.norm() + 1e-300)).item<double>();
}

/// Seeded normal values, f64, a leaf that requires grad.
inline at::Tensor leaf(at::IntArrayRef shape, uint64_t seed = 1) {
  torch::manual_seed(seed);
  return torch::randn(shape, torch::kFloat64).mul_(2).add_(0.5).requires_grad_();
}

/// Runs `action` and returns the message of the Error(kUsage) that it throws.
template <class Action>
std::string usage_error(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected palimpsest::Error, nothing was thrown";
  return "";
}

}  // namespace palimpsest::nn
