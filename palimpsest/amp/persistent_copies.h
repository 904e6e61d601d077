#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

namespace palimpsest::amp {

/// Master weights as the paper has them: the model holds 16-bit parameters, and their f32 masters stand
/// beside it, half as much memory again for weights. AutocastGuard over f32 parameters computes the same
/// without the second copy (tests/amp/master_weights_test.cpp: bit for bit); this is for comparison, and for
/// code that wants 16-bit parameters.
///
///   amp::PersistentCopies masters(*net, at::kHalf);
///   torch::optim::SGD sgd(masters.parameters(), 0.1);
///   // forward under an AutocastGuard, backward of the scaled loss, then:
///   masters.collect_gradients();
///   if (scaler.step(sgd)) masters.publish();
///   scaler.update();
///
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.1 and figure 1.
class PersistentCopies {
 public:
  /// Rounds `model`'s f32 parameters of two dimensions or more to `dtype`, f16 or bf16; vectors (biases, and
  /// weights of normalizations) stay f32, as do buffers. Throws Error(kUsage) for another dtype.
  PersistentCopies(const torch::nn::Module& model, at::ScalarType dtype);

  /// For the optimizer: a master for each 16-bit parameter, and the others themselves, in the model's order.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// Moves the gradients of the 16-bit parameters to their masters, added to what is there, in f32.
  void collect_gradients() const;
  /// Rounds the masters into the model: after the optimizer's step.
  void publish() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  // 16-bit parameter, its master
};

}  // namespace palimpsest::amp
