#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>

/// Autocast for the operators that multiply (convolution, linear). They take f32 parameters and round them to
/// 16 bits when they run, and again in backward. Only the f32 parameter is saved, which lives in any case. So
/// mixed precision needs memory for one 16-bit copy, in the layer that runs; and for an f32 copy of that where
/// operands are widened.
namespace palimpsest::ops {

struct ProductPrecision {
  at::ScalarType storage = at::kHalf;  ///< dtype of operands, results and gradients, for autocast f16 or bf16
  bool compute_in_f32 = false;         ///< operands are widened to f32 first (base/compute_in_f32.h)

  /// Returns the dtype of the operands as libtorch gets them.
  at::ScalarType compute_type() const { return compute_in_f32 ? at::kFloat : storage; }
};

/// Returns the precision that autocast asks of a product with x; none if autocast is off on the device of x,
/// or if x is f64.
std::optional<ProductPrecision> autocast_precision(const at::Tensor& x);

/// Returns the precision of a product on the device of x: `precision`, but in f32 on widened operands on a CPU that
/// does not multiply these 16 bits faster than f32. Of x86 processors those with AMX-FP16 do so for f16, and those
/// with AMX-BF16, or AMD's AVX512-BF16, for bf16. On others libtorch takes, in the time of f32:
/// - bf16, Intel's AVX512-BF16: 2 times. f16, AVX512-FP16: once, as oneDNN multiplies in f32 itself.
/// - bf16, AVX-512 without its bf16 instructions: 2.2 to 4.7 times, as oneDNN emulates them.
/// - bf16 and f16 without those: ten times, in libtorch's own loops. They round partial sums to 16 bits, in a
///   convolution's input gradient after each tap (3x3: 2.5 times the error of one rounding), in its weight gradient
///   after each image (32 images: 4 times).
ProductPrecision product_precision(const ProductPrecision& precision, const at::Tensor& x);

/// Returns the precision of a weight gradient. On a CPU, f16 weight gradients are computed in f32 on widened
/// operands (exact, rounded to f16 once): oneDNN has no f16 kernel for them on processors without AMX-FP16,
/// only reference loops (30 to 1000 times the time of f32).
ProductPrecision weight_gradient_precision(const ProductPrecision& precision, const at::Tensor& x);

}  // namespace palimpsest::ops
