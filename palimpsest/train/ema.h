#pragma once

#include "palimpsest/nn/state_dict.h"

#include <torch/nn/module.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace palimpsest::train {

/// The exponential moving average of a network. After training step number `step` (the first is 1) it is
///   a <- a + (1 - d) (p - a),  d = min(decay, (1 + step) / (10 + step))
/// for each parameter p, and for each buffer p of a floating-point type: the running statistics are averaged
/// too, because those of the last step belong to other weights. At first a = p. Counters are not averaged. The
/// smaller d of the first steps forgets the random weights; it is TensorFlow's rule.
/// Memory: as much as parameters and statistics take, on their device, in their type.
/// Source: Polyak, Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992; TensorFlow,
/// tf.train.ExponentialMovingAverage.
class Average {
 public:
  /// Begins with the present values of `module`, which must outlive this object. Throws Error(kUsage) unless
  /// decay is in (0, 1).
  Average(const torch::nn::Module& module, double decay);

  void update(int64_t step);

  /// Returns the averages by the names that the module has for the parameters and buffers. The tensors are
  /// this object's own, not copies.
  const nn::StateDict& tensors() const { return averages_; }

  /// Exchanges the values of the module and of the averages, in place, until it ends: between them the module
  /// computes with the averages. A copy of one tensor at a time is all the memory that it needs.
  class [[nodiscard]] Exchange {
   public:
    explicit Exchange(Average& average) : average_(average) { average_.exchange(); }
    ~Exchange() { average_.exchange(); }
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

   private:
    Average& average_;
  };

 private:
  void exchange();

  bool exchanged_ = false;  // the module has the averages

  double decay_;
  std::vector<at::Tensor> values_;  // of the module
  nn::StateDict averages_;
};

/// Throws Error(kUsage) unless decay is 0 (no average) or in (0, 1).
void check_ema_decay(double decay);

}  // namespace palimpsest::train
