#pragma once

#include "palimpsest/base/dtype.h"

namespace palimpsest::testing {

/// How far a result may lie from the truth, which is computed in double. Both must hold:
///   whole tensor   |got - want|_2 <= relative_l2 * |want|_2
///   one element    |got - want| <= element * (|want| + rms(want)): one wrong element of a million hides in
///   the first
struct Tolerance {
  double relative_l2;
  double element;
};

/// The limits of every test of a kernel, an operator or a module; no test body holds a number of its own.
constexpr Tolerance tolerance(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {1e-10, 1e-9};
    case DType::f32:
      return {1e-5, 1e-4};
    case DType::f16:
      return {1e-3, 5e-3};
    case DType::bf16:
      return {1e-2, 4e-2};
  }
  return {0, 0};
}

/// Where y comes from z and a bit, one element may be wrong by what the rounding of z leaves open of y at the
/// minimum, the square root of epsilon; the whole tensor may not.
constexpr Tolerance branch_tolerance(DType dtype) {
  const double element = dtype == DType::f64   ? 1e-8
                         : dtype == DType::f32 ? 5e-4
                         : dtype == DType::f16 ? 3e-2
                                               : 1e-1;
  return {tolerance(dtype).relative_l2, element};
}

/// Central differences in double: their own error, from the step and from rounding, is 1e-8 of the gradient's
/// size.
constexpr Tolerance kNumericGradient{1e-7, 1e-6};
constexpr double kNumericStep = 1e-5;

/// A densely connected block by two of its forms: the same maths in another order, |got - want|_2 / |want|_2.
constexpr double kSameMathsF64 = 1e-12;
constexpr double kSameMathsF32 = 1e-5;
/// The same of gradients through a whole network.
constexpr double kSameDeepMathsF64 = 1e-10;
/// The loss after some dozens of f64 steps by two forms, relative: rounding that training spreads.
constexpr double kSameTraining = 1e-9;

/// The sum of two gradients that a parameter accumulates in `dtype`: relative to its L2 norm, plus the floor.
constexpr double sum_of_gradients(DType dtype) {
  return dtype == DType::f16 ? 2e-3 : dtype == DType::bf16 ? 1e-2 : 1e-6;
}
constexpr double kSumOfGradientsFloor = 1e-6;
/// A gradient whose norm was clipped in f32 to 1, and the norm before, absolute.
constexpr double kClippedNorm = 1e-5;

/// A smooth u8 picture after a JPEG file of quality 95, in levels: the mean, and the worst where an edge
/// rings.
constexpr double kJpegMeanError = 3;
constexpr double kJpegWorstError = 40;
/// The heights of bars in an SVG, whose numbers have one decimal, in pixels; the last tick of an axis,
/// relative.
constexpr double kBarPixels = 0.2;
constexpr double kTickRounding = 1e-9;

/// Rounding of one form by that of another (error_ratios.h): all results together, and each. Measured of two
/// equally good forms, whatever is drawn: together 1.0 in 32 draws and 1.17 in 8, each 1.3 in 32 (99.9 %).
constexpr double kAsNearToTheTruth = 1.25;
constexpr double kEachAsNearToTheTruth = 1.5;
constexpr int kDraws = 32;
constexpr int kFewDraws = 8;

/// exp(v) - 1 and log(1 + u) of the vector kernels, in units in the last place of the result.
constexpr double kExponentialUlp = 2;

/// How well act(y) is computed on the way from z to y, in units in the last place, near its minimum.
constexpr double kActivationUlp = 5;

/// y from z and its branch, beyond what the rounding of z leaves open: epsilon * (1 + |y|).
constexpr double kBranchInverseUlp = 4;

}  // namespace palimpsest::testing
