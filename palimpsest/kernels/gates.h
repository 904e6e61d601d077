#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// An activation whose channels are multiplied by one gate per image, f32, channels-last, as squeeze and
/// excitation has it (ops/squeeze_excite_conv.h):
///   z = act(y),   means[n,c] = mean over s of z[n,s,c],   product[n,s,c] = z[n,s,c] * gate[n,c]
/// Backward of the product and of the means, whose gradients reach gate and y:
///   dgate[n,c] = sum over s of dproduct[n,s,c] * z[n,s,c]
///   dy[n,s,c]  = (dproduct[n,s,c] * gate[n,c] + dmean[n,c]) * act'(y[n,s,c]),   dmean = gradient of means / S
/// z is computed where it is read and is never a tensor. Each function reads and writes every tensor once.
///
/// Pointers: y, product, dproduct, dy: (N, S, C), contiguous; means, gate, dgate, dmean: (N, C); aligned as
/// floats. Sums are f32 over up to 144 pixels and continue in f64, in an order that depends on the shape only, so any
/// number of threads gives the same bytes. Memory: none.
namespace palimpsest::kernels {

struct GatesProblem {
  Shape3 shape;
  Activation activation = Activation::kIdentity;
  double activation_param = 0;
};

namespace cpu {

/// Returns whether the functions below take the problem: it has at least one value, and as many channels as a
/// vector of the instruction set in use has lanes.
bool has_gates(const GatesProblem& problem);

void activation_means(const GatesProblem& problem, const float* y, float* means);
void gated_forward(const GatesProblem& problem, const float* y, const float* gate, float* product);
/// Also writes the product again, with the bytes of gated_forward, unless `product` is null.
void gated_backward_reduce(const GatesProblem& problem, const float* y, const float* gate,
                           const float* dproduct, float* dgate, float* product);
/// dy may be dproduct.
void gated_backward_apply(const GatesProblem& problem, const float* y, const float* gate, const float* dmean,
                          const float* dproduct, float* dy);

}  // namespace cpu

/// The same functions as plain loops in double, rounded once: the reference of the tests.
namespace reference {

void activation_means(const GatesProblem& problem, const float* y, float* means);
void gated_forward(const GatesProblem& problem, const float* y, const float* gate, float* product);
void gated_backward_reduce(const GatesProblem& problem, const float* y, const float* gate,
                           const float* dproduct, float* dgate, float* product);
void gated_backward_apply(const GatesProblem& problem, const float* y, const float* gate, const float* dmean,
                          const float* dproduct, float* dy);

}  // namespace reference
}  // namespace palimpsest::kernels
