#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

/// Which gradients f16 loses, and the loss scale that saves them.
///
///   amp::ExponentHistogram activations, weights;
///   amp::observe_activation_gradients(scaled_loss, activations, scaler.get_scale());
///   scaled_loss.backward();
///   scaler.unscale_(sgd);
///   weights.add_gradients(sgd);
///   std::puts(weights.text().c_str());
///
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, figures 2 and 3 and section 3.2.
namespace palimpsest::amp {

/// The exponent of the least number of f16, below which a gradient is lost, and the largest f16 number.
inline constexpr int kLeastHalfExponent = -24;
inline constexpr double kLargestHalf = 65504;

/// Values by binary exponent, of as many tensors as are added.
class ExponentHistogram {
 public:
  static constexpr int kLowest = -149, kHighest = 127;  ///< exponents of f32

  /// The values of `gradient` (f32, f16 or bf16; an undefined one has none), divided by `scale`, which they
  /// were multiplied by: a power of two moves exponents, any other costs a copy.
  void add(const at::Tensor& gradient, double scale = 1);
  /// The gradients of all of the optimizer's parameters.
  void add_gradients(const torch::optim::Optimizer& optimizer, double scale = 1);
  void clear() { *this = {}; }

  int64_t values() const { return values_; }
  int64_t not_finite() const { return not_finite_; }
  int64_t count(int exponent) const { return counts_[static_cast<size_t>(exponent - kLowest)]; }

  /// In [0, 1], of all values; 0 of none. With s, the recommended scale:
  struct Shares {
    double zero = 0;         ///< exactly zero
    double lost = 0;         ///< not zero, and below 2^-24: zero in f16
    double recoverable = 0;  ///< of all values those that are lost at scale 1 and not at s
    double above = 0;  ///< 65536 and above or not finite: these overflow in f16 (bins are powers of two; of
                       ///< [32768, 65536) the 32 values of f32 in 16384 above 65504 count as below)
  };
  Shares shares() const;

  /// The largest power of two s such that s * max |gradient| < 65504 whatever it is in its bin: the constant
  /// scale that the paper's rule gives. At most 2^24 (no gradient needs more that f32 masters can hold); 1
  /// where nothing but zeros was seen, or something not finite alone.
  double recommended_scale() const;

  /// A table of the shares, the scale and a bar for each exponent that occurs: ready to print.
  std::string text() const;
  /// The same for a chart: exponents in ascending order and the share of each; without zeros.
  struct Bars {
    std::vector<double> exponents, shares;
  };
  Bars bars() const;

 private:
  std::array<int64_t, kHighest - kLowest + 1> counts_{};
  int64_t values_ = 0, zero_ = 0, not_finite_ = 0;
};

/// Adds to `histogram`, in the backward pass that follows, the gradients of all 16-bit tensors between the
/// layers of the graph behind `loss`, divided by `scale`. `histogram` must live until then. What views and
/// sums pass on unchanged is counted once.
void observe_activation_gradients(const at::Tensor& loss, ExponentHistogram& histogram, double scale = 1);

}  // namespace palimpsest::amp
