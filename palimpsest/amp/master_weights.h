#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace palimpsest::amp {

/// Master weights as in the paper: the model has 16-bit parameters, and each has an f32 master beside it. The
/// 16-bit parameters take half as much memory again as the masters. AutocastGuard over f32 parameters
/// computes the same bits without the second copy; this class is for comparison, and for code that needs
/// 16-bit parameters.
///
///   amp::MasterWeights masters(net->parameters(), at::kHalf);
///   torch::optim::SGD sgd(masters.parameters(), 0.1);
///   // forward under an AutocastGuard, backward of the scaled loss, then:
///   masters.collect_gradients();
///   if (scaler.step(sgd)) masters.publish();
///   scaler.update();
///
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.1 and figure 1.
class MasterWeights {
 public:
  /// Rounds the f32 tensors of two or more dimensions among `parameters` to `dtype`, f16 or bf16, in place.
  /// Vectors (biases, weights of normalizations) and tensors of other types stay as they are.
  /// Throws Error(kUsage) for another dtype.
  MasterWeights(const std::vector<at::Tensor>& parameters, at::ScalarType dtype);

  /// Returns the parameters for the optimizer, in the order of the constructor: the master of each 16-bit
  /// parameter, and the other parameters themselves.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// Moves the gradients of the 16-bit parameters to their masters, and adds them in f32 to gradients that
  /// the masters already have.
  void collect_gradients() const;
  /// Rounds the masters into the 16-bit parameters. Call it after the optimizer's step.
  void publish() const;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  // 16-bit parameter, its master
};

}  // namespace palimpsest::amp
