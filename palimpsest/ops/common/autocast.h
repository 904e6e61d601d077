#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

/// What autocast means to our operators that multiply (convolutions, linear). They take parameters in f32 and
/// round them to 16 bits when they run and again in backward: what is kept is the f32 parameter, which lives
/// anyway, so mixed precision costs no memory for weights but the copy of the layer at work.
namespace palimpsest::ops {

struct ProductPrecision {
  at::ScalarType storage = at::kHalf;  ///< f16 or bf16: of operands, results and gradients
  bool wide = false;                   ///< maths in f32, on widened operands (base/wide_maths.h)

  /// The type that products are computed in; sums of them are f32 within the kernels anyway.
  at::ScalarType maths() const { return wide ? at::kFloat : storage; }
};

/// What autocast asks of a product with x. None where it is off on x's device, or x is f64.
std::optional<ProductPrecision> autocast_precision(const at::Tensor& x);

/// The precision in which a weight's gradient is computed on `device`: oneDNN has no kernel for it in f16 on
/// processors without AMX-FP16, only reference loops (30 to 1000 times the time of f32), so there it is f32
/// maths on widened operands, which are exact, rounded to f16 once as ever.
ProductPrecision weight_gradient_precision(const ProductPrecision& precision, const at::Tensor& x);

/// t rounded to storage, in the type of the maths.
inline at::Tensor operand(const at::Tensor& t, const ProductPrecision& precision) {
  return t.to(precision.storage).to(precision.maths());
}

/// A stand-in for t in the type of the maths, where its shape and layout alone are read.
at::Tensor shape_of(const at::Tensor& t, at::ScalarType type);

void save_precision(torch::autograd::AutogradContext* ctx, const std::optional<ProductPrecision>& precision);
std::optional<ProductPrecision> saved_precision(torch::autograd::AutogradContext* ctx);

}  // namespace palimpsest::ops
