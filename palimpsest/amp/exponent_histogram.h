#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

/// Shows which gradients f16 loses, and recommends the loss scale that saves them.
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

/// The exponent of the smallest f16 number, below which a gradient is lost, and the largest f16 number.
inline constexpr int kLeastHalfExponent = -24;
inline constexpr double kLargestHalf = 65504;

/// Counts the values of tensors by their binary exponent.
class ExponentHistogram {
 public:
  static constexpr int kLowest = -149, kHighest = 127;  ///< exponents of f32

  /// Adds the values of `gradient` (f32, f16 or bf16; f64 is rounded to f32; an undefined tensor has none),
  /// divided by the loss scale that multiplied them. A scale that is a power of two moves exponents; any other costs a copy.
  void add(const at::Tensor& gradient, double scale = 1);
  /// Adds the gradients of all of the optimizer's parameters.
  void add_gradients(const torch::optim::Optimizer& optimizer, double scale = 1);
  /// Adds the values of another histogram.
  void add(const ExponentHistogram& other);
  void clear() { *this = {}; }

  /// Returns the number of values that were added, with zeros and values that are not finite.
  int64_t values() const { return values_; }
  int64_t not_finite() const { return not_finite_; }
  /// Returns the number of finite values v with 2^exponent <= |v| < 2^(exponent + 1).
  int64_t count(int exponent) const { return counts_[static_cast<size_t>(exponent - kLowest)]; }

  /// Shares of all values, each in [0, 1]; 0 if there are no values.
  struct Shares {
    double zero = 0;         ///< exactly zero
    double lost = 0;         ///< not zero, and below 2^-24, which f16 loses
    double recoverable = 0;  ///< lost at scale 1, but not at recommended_scale()
    /// Not finite, or at least 65536, which overflows in f16. (Bins are powers of two, so the values between
    /// 65504 and 65536, 1 of 1024 in their bin, do not count.)
    double above = 0;
  };
  Shares shares() const;

  /// Returns the constant scale of the paper's rule: the largest power of two s with s * |g| < 65504 for
  /// every gradient g that the highest bin can hold. It is at most 2^24, because f32 master weights gain
  /// nothing from more, and 1 if all values are zero or not finite.
  double recommended_scale() const;

  /// Returns the shares, the recommended scale, and one bar per exponent, as text to print.
  std::string text() const;
  /// The bars of a chart: exponents in ascending order, with the share of each; without zeros.
  struct Bars {
    std::vector<double> exponents, shares;
  };
  Bars bars() const;
  /// Returns the histogram that has these bars, as far as a log holds it: the other of its `values` are zero
  /// (the share `zero`) or not finite.
  static ExponentHistogram from_bars(const Bars& bars, int64_t values, double zero);

 private:
  std::array<int64_t, kHighest - kLowest + 1> counts_{};
  int64_t values_ = 0, zero_ = 0, not_finite_ = 0;
};

/// Makes the next backward pass from `loss` add the gradients of all 16-bit tensors between layers, divided
/// by `scale`, to `histogram`, which must live until then. A gradient that views and sums pass on unchanged
/// counts once.
void observe_activation_gradients(const at::Tensor& loss, ExponentHistogram& histogram, double scale = 1);

}  // namespace palimpsest::amp
