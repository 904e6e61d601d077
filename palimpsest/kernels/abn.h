#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/host_device.h"
#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/activation.h"

#include <cstdint>

/// The fused layer: batch normalization + activation over a contiguous (N, C, S) tensor.
///   y[n,c,s] = weight[c] * (x[n,c,s] - mean[c]) * inv_std[c] + bias[c] + residual[n,c,s],   z = act(y)
/// Backward starts from one full-size tensor, which forward saved (`Saved`).
///
/// Pointers:
///   x, residual, z, saved_values, dz, dx, dresidual: shape.elements() values of `dtype`, all in `layout`; no
///     alignment is required. 16-bit values are widened to f32 and rounded once, where they are stored.
///   weight, bias, sums: (C), accumulate_t<dtype> (f64 for f64, else f32). A null weight means 1, a null bias
///     means 0. weight may have any sign.
///   mean, var, inv_std: (C), f64: backward recomputes the bytes that forward had.
///   branch: bit i says whether the i-th value in memory has y > y_min (formulas/branch_inverse.h).
/// Memory: at most 64 partial sums per channel (2 per image and channel for images of more than 64 Ki
/// pixels), which the calling thread keeps for its next call. The result has the same bytes for any number of
/// threads.
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018; kOutput is form II of its section 3.
namespace palimpsest::kernels {

/// Which full-size tensor is saved for backward.
enum class Saved {
  kOutput,         ///< z; backward computes y = act^-1(z): invertible activations, no weight 0
  kOutputForm1,    ///< z; backward computes x-hat = (y - bias) / weight, the paper's form I: likewise
  kPreActivation,  ///< y before the residual is added: any activation, no weight 0
  kNormalized,     ///< x-hat = (x - mean) * inv_std: any activation, any weight
  kInput,          ///< x: any activation, any weight
  kOutputBit,      ///< z and one bit per element: activations with two branches, no weight 0
};

/// Whether z is saved.
PALIMPSEST_HOST_DEVICE constexpr bool saves_output(Saved saved) {
  return saved == Saved::kOutput || saved == Saved::kOutputForm1 || saved == Saved::kOutputBit;
}

/// Whether the saved tensor is neither x nor z, so that forward writes it beside z.
PALIMPSEST_HOST_DEVICE constexpr bool saves_aside(Saved saved) {
  return saved == Saved::kPreActivation || saved == Saved::kNormalized;
}

/// Whether the saved tensor lies before the activation, so that backward never inverts the activation.
PALIMPSEST_HOST_DEVICE constexpr bool is_before_activation(Saved saved) {
  return saved == Saved::kPreActivation || saved == Saved::kNormalized || saved == Saved::kInput;
}

/// What one call works on.
struct AbnProblem {
  Shape3 shape;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;
  Saved saved = Saved::kOutput;
  /// Adds max(residual, 0): the operator that made the residual left its ReLU to those that read it.
  bool relu_residual = false;
};

struct AbnForward {
  const void* x = nullptr;
  const void* residual = nullptr;  ///< may be null
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* z = nullptr;             ///< may be x
  void* saved_values = nullptr;  ///< y or x-hat if saves_aside(problem.saved), else ignored; may be x
  uint8_t* branch = nullptr;  ///< for Saved::kOutputBit: branch_bytes(elements) zeros, which become the bits
  double* mean = nullptr;
  double* var = nullptr;  ///< biased
  double* inv_std = nullptr;
};

/// Running statistics that a training step moves towards the batch's:
///   running <- (1 - momentum) * running + momentum * batch, with the unbiased variance (over m - 1).
struct RunningStatistics {
  void* mean = nullptr;  ///< (C), the type of weight; null if there are none
  void* var = nullptr;
  double momentum = 0.1;
};

struct AbnBackward {
  const void* saved_values = nullptr;  ///< the tensor that problem.saved names
  const uint8_t* branch = nullptr;     ///< the bits that forward wrote; read for Saved::kOutputBit only
  const void* residual = nullptr;      ///< null if forward had none
  const void* dz = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  const double* mean = nullptr;  ///< read for Saved::kInput only
  const double* inv_std = nullptr;
  void* sum_dy = nullptr;       ///< the gradient of bias
  void* sum_dy_xhat = nullptr;  ///< the gradient of weight
  void* dx = nullptr;           ///< may be dz
  void* dresidual = nullptr;    ///< may be null
  /// May be null; else becomes z again, with the bytes of forward, if is_before_activation(problem.saved).
  void* z = nullptr;
};

namespace cpu {

/// mean[c] and the biased variance var[c] of x. They are summed around a pivot: E[x^2] - E[x]^2 would lose
/// all digits where |mean| is large against the standard deviation.
void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var);

/// z and the saved values from x, mean and inv_std.
void abn_apply(const AbnProblem& problem, const AbnForward& forward);

/// Training: abn_statistics, inv_std = 1 / sqrt(var + eps), abn_apply; in NCHW with a channel's slab in cache
/// between them. Writes z, the saved values, mean, var and inv_std, with the bytes of the separate calls.
void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward);

/// z again, with the bytes that forward wrote, from saved_values (which may be z), residual, mean and
/// inv_std; x is ignored. Requires is_before_activation(problem.saved).
void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward);

/// sum_dy[c] = sum of dy and sum_dy_xhat[c] = sum of dy * x-hat, where dy = dz * act'(y): the gradients of
/// bias and weight. Where z is so deep in saturation that y is lost, the lowest y that rounds to z takes its
/// place.
void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward);

/// dx = weight * inv_std * (dy - sum_dy / m - x-hat * sum_dy_xhat / m), dresidual = dy, and z.
/// `m` is the number of values behind the sums (N * S, more if statistics are synchronized). Null sums stand
/// for frozen statistics (eval mode): dx = weight * inv_std * dy.
void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m);

/// abn_backward_reduce, then abn_backward_apply with m = N * S; in NCHW with a channel's slab in cache
/// between them. The bytes are those of the two calls.
void abn_backward(const AbnProblem& problem, const AbnBackward& backward);

}  // namespace cpu

/// The same functions as plain loops in double: the truth of the tests.
namespace reference {

void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var);
void abn_apply(const AbnProblem& problem, const AbnForward& forward);
void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward);
void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward);
void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward);
void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m);
void abn_backward(const AbnProblem& problem, const AbnBackward& backward);

}  // namespace reference
}  // namespace palimpsest::kernels
