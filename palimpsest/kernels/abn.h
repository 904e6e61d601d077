#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// The fused layer: batch normalization + activation over a dense (N, C, S) tensor.
///   y[n,c,s] = weight[c] * (x[n,c,s] - mean[c]) * inv_std[c] + bias[c] + residual[n,c,s],   z = act(y)
/// Backward starts from the one tensor that was kept (`Saved`).
///
/// Every pointer argument:
///   x, residual, z, kept, dz, dx, dresidual: shape.elements() values of `dtype`, all in the same `layout`,
///   no alignment required; 16-bit values are widened to f32, and rounded once where they are stored. weight,
///   bias, sums: C values of accumulate_t<dtype> (f32; f64 for f64). mean, var, inv_std: C values of f64, so
///   that what is made again in backward has the bytes it had before. weight == nullptr means 1, bias ==
///   nullptr means 0. weight may have any sign.
///   branch: bit i of it, y > y_min, belongs to the i-th value in memory (branch_bytes, branch_inverse.h).
/// Memory: at most 64 partial sums a channel (2 per image and channel for images of more than 64 Ki pixels),
/// kept by the calling thread for its next call. The result has the same bytes for any number of threads.
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018; form II of its section 3.
namespace palimpsest::kernels {

/// The tensor that forward leaves for backward.
enum class Saved {
  kOutput,         ///< z: y = act^-1(z), for the activations that can be inverted; without weight 0
  kOutputForm1,    ///< z, and backward computes x-hat = (y - bias) / weight as the paper's form I does
  kPreActivation,  ///< y before the residual is added: any activation; without weight 0
  kNormalized,     ///< x-hat = (x - mean) * inv_std: any activation, any weight
  kInput,          ///< x: any activation, any weight
  kOutputBit,      ///< z and one bit an element: the activations with two branches; without weight 0
};

/// What one call of the layer works on.
struct AbnProblem {
  Shape3 shape;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;
  Saved saved = Saved::kOutput;
  bool relu_residual =
      false;  ///< max(residual, 0) is what is added: its producer left the ReLU to its readers
};

struct AbnForward {
  const void* x = nullptr;
  const void* residual = nullptr;  ///< may be null
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* z = nullptr;          ///< may be x
  void* kept = nullptr;       ///< y or x-hat, as layer.saved says; may be x. Not looked at for other kinds.
  uint8_t* branch = nullptr;  ///< for Saved::kOutputBit: branch_bytes(elements) zeros, which become the bits
  double* mean = nullptr;
  double* var = nullptr;  ///< biased
  double* inv_std = nullptr;
};

/// Running statistics that a training step moves towards the batch's:
///   running <- (1 - momentum) * running + momentum * batch, with the unbiased variance (over m - 1).
struct RunningStatistics {
  void* mean = nullptr;  ///< (C), the type of weight; null: none are kept
  void* var = nullptr;
  double momentum = 0.1;
};

struct AbnBackward {
  const void* kept = nullptr;
  const uint8_t* branch = nullptr;  ///< as forward left it; read for Saved::kOutputBit only
  const void* residual = nullptr;   ///< null if forward had none
  const void* dz = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const double* mean = nullptr;  ///< read for Saved::kInput only
  const double* inv_std = nullptr;
  void* sum_dy = nullptr;       ///< the gradient of bias
  void* sum_dy_xhat = nullptr;  ///< the gradient of weight
  void* dx = nullptr;           ///< may be dz
  void* dresidual = nullptr;    ///< may be null
  /// May be null; for kPreActivation, kNormalized and kInput, which read y anyway: z again, the bytes of forward.
  void* z = nullptr;
};

// In both namespaces below:
//
// abn_statistics: mean[c] and the biased variance var[c] of x, summed around a pivot: never E[x^2] - E[x]^2,
//   which loses all digits where |mean| is large against the standard deviation.
// abn_apply: z, and what is kept, from x, mean and inv_std.
// abn_forward: training: statistics, inv_std = 1/sqrt(var + eps), apply; in NCHW with a channel's slab in
//   cache between them. Writes z, what is kept, mean, var, inv_std: the same bytes as the two calls.
// abn_rebuild: z again from what was kept (`kept`; `z` may be the same memory), mean and inv_std: the bytes
//   that forward wrote. With a residual, which must be what it was.
// abn_backward_reduce: sum_dy[c] = sum of dy, sum_dy_xhat[c] = sum of dy * x-hat, dy = dz * act'(y): the
//   gradients of bias and weight. Where z is so deep in saturation that y is gone, the lowest y that z could
//   stand for takes its place.
// abn_backward_apply: dx = weight * inv_std * (dy - sum_dy/m - xhat * sum_dy_xhat/m), dresidual = dy, and z.
//   Null sums: frozen statistics (eval mode), dx = weight * inv_std * dy. `m` is the number of values behind
//   the sums (N*S, more if synchronized).
// abn_backward: reduce and apply, m = N*S; in NCHW with a channel's slab in cache between them. The same
//   bytes as the two calls.
#define PALIMPSEST_ABN_KERNELS                                                            \
  void abn_statistics(const AbnProblem& layer, const void* x, double* mean, double* var); \
  void abn_apply(const AbnProblem& layer, const AbnForward& t);                           \
  void abn_forward(const AbnProblem& layer, double eps, const AbnForward& t);             \
  void abn_rebuild(const AbnProblem& layer, const AbnForward& t);                         \
  void abn_backward_reduce(const AbnProblem& layer, const AbnBackward& t);                \
  void abn_backward_apply(const AbnProblem& layer, const AbnBackward& t, double m);       \
  void abn_backward(const AbnProblem& layer, const AbnBackward& t);

namespace cpu {

PALIMPSEST_ABN_KERNELS

/// The instruction set in use: "x86-64-v2", "x86-64-v3", "x86-64-v4" or "native". Picked once, at first use;
/// PALIMPSEST_ISA in the environment forces one (an unknown or unsupported name throws
/// std::invalid_argument).
const char* instruction_set();

}  // namespace cpu

/// The same functions as plain loops in double: the truth of the tests.
namespace reference {

PALIMPSEST_ABN_KERNELS

}  // namespace reference
}  // namespace palimpsest::kernels
