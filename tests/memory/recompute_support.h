#pragma once

#include "palimpsest/memory/recompute.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <string>
#include <vector>

namespace palimpsest::memory::testing {

using Tensors = std::vector<at::Tensor>;

/// fn(x), recomputed or plain.
template <class Fn>
auto segment(bool recomputed, Fn fn, const at::Tensor& x, const RecomputeOptions& options = {}) {
  return recomputed ? recompute(fn, x, options) : detail::run(fn, x);
}

inline ::testing::AssertionResult same_bytes(const at::Tensor& got, const at::Tensor& want) {
  if (got.defined() != want.defined()) {
    return ::testing::AssertionFailure() << (got.defined() ? "defined" : "undefined") << ", not as wanted";
  }
  if (!got.defined()) return ::testing::AssertionSuccess();
  if (got.sizes() != want.sizes() || got.scalar_type() != want.scalar_type()) {
    return ::testing::AssertionFailure() << "got " << got.toString() << " " << got.sizes() << ", want "
                                         << want.toString() << " " << want.sizes();
  }
  const auto a = got.detach().contiguous(), b = want.detach().contiguous();
  if (std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "largest difference " << (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// The state of the CPU's default generator, and with it how many numbers were drawn.
inline at::Tensor random_state() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

/// Returns the results of a training step: gradients of the parameters, buffers, the generator's state.
inline Tensors left_behind(const torch::nn::Module& module) {
  Tensors all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.grad());
  for (const auto& buffer : module.buffers()) all.push_back(buffer);
  all.push_back(random_state());
  return all;
}

/// Runs `step(recomputed)`, which makes all it uses, plainly and recomputed from the same seed; the tensors
/// that it returns must be the same to the last bit.
template <class Step>
void expect_same_as_plain(Step step) {
  torch::manual_seed(1);
  const Tensors want = step(false);
  torch::manual_seed(1);
  const Tensors got = step(true);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(same_bytes(got[i], want[i])) << "tensor " << i;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline torch::nn::Conv2d conv(int64_t in, int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
}

}  // namespace palimpsest::memory::testing
