#pragma once

#include "palimpsest/nn/dense_block.h"
#include "tests/nn/support.h"

#include <cmath>

/// The parts that the tests of densely connected blocks share.
namespace palimpsest::nn {

inline constexpr DenseStrategy kDenseForms[] = {DenseStrategy::kNaive, DenseStrategy::kSharedGradient,
                                                DenseStrategy::kShared, DenseStrategy::kCheckpoint,
                                                DenseStrategy::kFused};

/// A small block of 5 to 17 channels.
inline DenseBlockOptions small_block(DenseStrategy form, const NormOptions& norm,
                                     bool pre_activation = true) {
  return DenseBlockOptions(5).layers(4).growth(3).dense_strategy(form).norm(norm).pre_activation(
      pre_activation);
}

/// Every parameter and running statistic away from its initial value, the same for every form.
inline void randomize(torch::nn::Module& module, uint64_t seed = 3) {
  torch::NoGradGuard no_grad;
  torch::manual_seed(seed);
  for (auto& p : module.named_parameters())
    if (p.value().dim() == 1)
      p.value().copy_(p.key().ends_with("weight") ? torch::rand_like(p.value()) + 0.5
                                                  : torch::randn_like(p.value()) * 0.3);
    else
      p.value().copy_(torch::randn_like(p.value()) / std::sqrt(static_cast<double>(p.value()[0].numel())));
  for (auto& b : module.named_buffers()) {
    if (b.key().ends_with("running_mean")) b.value().normal_(0, 0.3);
    if (b.key().ends_with("running_var")) b.value().uniform_(0.5, 1.5);
  }
}

enum class Mode { kTraining, kEval, kFrozenNorms };

inline void set_mode(torch::nn::Module& module, Mode mode) {
  module.train(mode != Mode::kEval);
  if (mode != Mode::kFrozenNorms) return;
  // Every other normalization: some features' statistics are of the batch, some are not, for each reader.
  int i = 0;
  for (const auto& child : module.modules(false))
    if (auto* norm = child->as<BatchNormActImpl>(); norm && i++ % 3 == 0) norm->eval();
}

/// One step: the output, the gradients of input and parameters, then the buffers.
inline std::vector<at::Tensor> step(DenseBlock& block, at::Tensor x, uint64_t seed = 5) {
  torch::manual_seed(seed);
  x = x.detach().requires_grad_();
  const at::Tensor out = block->forward(x);
  torch::manual_seed(7);
  const at::Tensor probe = torch::randn(out.sizes(), torch::kFloat64).to(out.scalar_type());
  block->zero_grad();
  (out * probe).sum().backward();
  std::vector<at::Tensor> all{out.detach(), x.grad()};
  for (const auto& p : block->parameters()) all.push_back(p.grad());
  for (const auto& b : block->buffers()) all.push_back(b.clone());
  return all;
}

inline DenseBlock make_block(const DenseBlockOptions& options, at::ScalarType dtype = at::kDouble,
                             uint64_t seed = 3) {
  DenseBlock block(options);
  block->to(at::kDouble);
  randomize(*block, seed);
  if (dtype != at::kDouble) block->to(dtype);
  return block;
}

inline at::Tensor image(at::ScalarType dtype, bool channels_last = false, int64_t n = 2, int64_t c = 5,
                        int64_t h = 6, int64_t w = 7, uint64_t seed = 11) {
  torch::manual_seed(seed);
  const at::Tensor x = torch::randn({n, c, h, w}, torch::kFloat64).add_(0.3).to(dtype);
  return channels_last ? x.contiguous(at::MemoryFormat::ChannelsLast) : x;
}

}  // namespace palimpsest::nn
