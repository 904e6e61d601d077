#pragma once

#include "palimpsest/base/dtype.h"

namespace palimpsest::testing {

// Every limit of the tests of kernels, operators, modules, models and training. A test body holds no number of
// its own.

/// How far a result may lie from the truth, which is computed in f64. Both limits must hold:
///   whole tensor   |got - want|_2 <= relative_l2 * |want|_2
///   each element   |got - want| <= element * (|want| + rms(want))
/// The second finds one wrong element of a million, which the first would miss.
struct Tolerance {
  double relative_l2;
  double element;
};

/// The limits of one storage type.
struct ToleranceRow {
  DType dtype;
  /// A result that was rounded once, from the same inputs as the truth.
  Tolerance rounded_once;
  /// `element` where y comes from z and a bit: near the minimum, the rounding of z moves one element of y by
  /// the square root of epsilon, but not the whole tensor.
  double element_at_minimum;
  /// relative_l2 of output and gradients if the truth starts from values that were not rounded: 16-bit storage
  /// moves some of them across a kink of the activation.
  double across_kinks;
  /// The sum of two gradients, accumulated in this type: relative_l2.
  double accumulated;
};

inline constexpr ToleranceRow kTolerances[] = {
    // dtype      rounded once    at a minimum  across kinks  accumulated
    {DType::f64, {1e-10, 1e-9}, 1e-8, 1e-10, 1e-6},
    {DType::f32, {1e-5, 1e-4}, 5e-4, 1e-5, 1e-6},
    {DType::f16, {1e-3, 5e-3}, 3e-2, 2e-2, 2e-3},
    {DType::bf16, {1e-2, 4e-2}, 1e-1, 1e-1, 1e-2},
};

constexpr const ToleranceRow& tolerances(DType dtype) {
  for (const ToleranceRow& row : kTolerances)
    if (row.dtype == dtype) return row;
  return kTolerances[0];
}

constexpr Tolerance tolerance(DType dtype) {
  return tolerances(dtype).rounded_once;
}
constexpr Tolerance tolerance_at_minimum(DType dtype) {
  return {tolerance(dtype).relative_l2, tolerances(dtype).element_at_minimum};
}
constexpr double tolerance_across_kinks(DType dtype) {
  return tolerances(dtype).across_kinks;
}

/// relative_l2 in f32 at a mean of 1000 standard deviations: the mean itself is rounded to f32, which is an
/// error of 3e-5 in values of size 1.
constexpr double kLargeMeanF32 = 5e-5;
/// relative_l2 in f32 of a single channel, which has no other channels to average with.
constexpr double kChannelF32 = 1e-4;
/// relative_l2 in f32 of a gradient that is nothing but a sum of 2048 values of both signs.
constexpr double kReducedF32 = 1e-4;
/// The mean, in standard deviations, and the variance, relative, of values in f32 or 16 bits. The variance of bf16 in
/// channels-last, where a lane adds up 128 squares, is low by 1.1e-6.
constexpr double kMeanOfStored = 1e-7, kVarianceOfStored = 2e-6;
/// z in 16 bits, in units in the last place: of z, and of a value as large as the mean, which is no operand of its own.
constexpr double kRoundedZ = 0.51, kFarMean = 0x1p-12;
/// Running statistics in f32, relative.
constexpr double kRunningStatistics = 1e-6;

/// Central differences in f64: their own error, from the step and from rounding, is 1e-8 of the gradient's
/// size.
constexpr Tolerance kNumericGradient{1e-7, 1e-6};
constexpr double kNumericStep = 1e-5;

/// The same operations in another order, relative_l2: two forms of a block, or a few hundred sums.
constexpr double kReorderedF64 = 1e-12;
constexpr double kReorderedF32 = 1e-5;
/// The same of gradients through a whole network.
constexpr double kReorderedDeepF64 = 1e-10;
/// The same of a whole network by two of its strategies.
constexpr double kReorderedNetworkF64 = 1e-9;
/// The norm below which a tensor of a network is compared in absolute terms: it may be zero but for rounding, such
/// as the gradient of a bias before the next normalization.
constexpr double kVanishingF64 = 1e-2;
/// Gradients of a network in 16 bits against f64, and how far 16 bits move its logits: the rounding of a value
/// times what the layers make of it.
constexpr double kBF16Gradients = 0.6, kF16Gradients = 0.2;
constexpr double kBF16Logits = 0.4, kF16Logits = 0.08;
/// The same operations, of which fewer results are asked for, in f64.
constexpr double kSubsetF64 = 1e-14;
/// The loss after some dozens of f64 steps by two forms, relative: training amplifies rounding.
constexpr double kSameTraining = 1e-9;

/// Added to the limit of accumulated gradients, absolute.
constexpr double kAccumulatedFloor = 1e-6;
/// A gradient whose norm was clipped in f32 to 1, and the norm before, absolute.
constexpr double kClippedNorm = 1e-5;

/// A smooth u8 picture after a JPEG file of quality 95, in levels: the mean, and the worst where an edge
/// rings.
constexpr double kJpegMeanError = 3;
constexpr double kJpegWorstError = 40;
/// A smooth JPEG that is decoded at an eighth of its size and then scaled, against one that is only scaled, in
/// levels.
constexpr double kReducedJpegLevels = 4;
/// The same of a ramp, on average over a picture.
constexpr double kReducedJpegMeanLevels = 0.5;
/// The heights of bars in an SVG, whose numbers have one decimal, in pixels; the last tick of an axis,
/// relative.
constexpr double kBarPixels = 0.2;
constexpr double kTickRounding = 1e-9;

/// The loss of a short training in 16 bits against that in f32, absolute.
constexpr double kSameLoss16Bits = 0.05;

/// A formula of a few operations, absolute, of values up to 1 in f64 and up to 3 in f32.
constexpr double kRoundingF64 = 1e-15;
constexpr double kRoundingF32 = 1e-6;

/// Pixels after bilinear interpolation in f32, in levels of 256.
constexpr double kInterpolatedLevels = 1e-3;

/// The standard deviation of 2.36 million drawn weights, in units of one of fan-out: 15 standard errors.
constexpr double kDrawnDeviation = 0.01;
/// Megabytes with three digits, relative.
constexpr double kPublishedMegabytes = 0.01;

/// Rounding of one form by that of another (error_ratios.h): all results together, and each. Measured of two
/// equally good forms, whatever is drawn: together 1.0 in 32 draws and 1.17 in 8, each 1.3 in 32 (99.9 %).
constexpr double kAsNearToTheTruth = 1.25;
constexpr double kEachAsNearToTheTruth = 1.5;
constexpr int kDraws = 32;
constexpr int kFewDraws = 8;

/// exp(v) - 1 and log(1 + u) of the vector kernels, in units in the last place of the result.
constexpr double kExponentialUlp = 2;

/// The error of act(y) near its minimum, on the way from z to y, in units in the last place.
constexpr double kActivationUlp = 5;

/// The error of y from z and its branch, beyond that of the rounding of z: so many times epsilon * (1 + |y|).
constexpr double kBranchInverseUlp = 4;

/// A straight activation's channel that the invertibility criterion refuses has at least 1/5 of the tolerated
/// error.
constexpr double kInvertibilityCaution = 5;

}  // namespace palimpsest::testing
