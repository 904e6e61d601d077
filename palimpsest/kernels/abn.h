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
///   mean, var, inv_std: (C), f64, so that backward computes with the same bytes as forward.
///   branch: bit i is 1 if the i-th value in memory has y > y_min (formulas/branch_inverse.h).
/// Memory on a CPU: at most 64 partial sums per channel (2 per image and channel for images of more than 64
/// Ki pixels), which the calling thread keeps for its next call, and 8 bytes per channel where some have slots. The result has the same bytes for any number
/// of threads.
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018; kOutput is form II of its section 3.
namespace palimpsest::kernels {

/// The full-size tensor that is saved for backward. kOutput, kOutputForm1, kOutputBit and kPreActivation need
/// weights that are not 0; kNormalized and kInput take any weight.
enum class Saved {
  kOutput,         ///< z, for invertible activations; backward computes y = act^-1(z)
  kOutputForm1,    ///< the same; backward also computes x-hat = (y - bias) / weight, the paper's form I
  kPreActivation,  ///< y before the residual is added, for any activation
  kNormalized,     ///< x-hat = (x - mean) * inv_std, for any activation
  kInput,          ///< x, for any activation
  kOutputBit,      ///< z and one bit per element, for activations with two branches
};

/// Returns whether z is saved.
PALIMPSEST_HOST_DEVICE constexpr bool saves_output(Saved saved) {
  return saved == Saved::kOutput || saved == Saved::kOutputForm1 || saved == Saved::kOutputBit;
}

/// Returns whether the saved tensor is neither x nor z, so that forward writes it beside z.
PALIMPSEST_HOST_DEVICE constexpr bool saves_aside(Saved saved) {
  return saved == Saved::kPreActivation || saved == Saved::kNormalized;
}

/// Returns whether the saved tensor lies before the activation. Backward then never inverts the activation.
PALIMPSEST_HOST_DEVICE constexpr bool is_before_activation(Saved saved) {
  return saved == Saved::kPreActivation || saved == Saved::kNormalized || saved == Saved::kInput;
}

/// The problem of one call: geometry, types and options.
struct AbnProblem {
  Shape3 shape;
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;
  Saved saved = Saved::kOutput;
  /// Adds max(residual, 0) instead of the residual, whose producer left the ReLU to its readers.
  bool relu_residual = false;
};

/// Channels of a full tensor and their copy, `part`, as gather_channels and scatter_channels (channel_slots.h) take
/// them. A pass that reads or writes the full tensor copies them while they are in cache. CPU functions only, in
/// channels-last with two channels or more (else std::invalid_argument); other functions ignore them.
struct PartOfChannels {
  const int64_t* index = nullptr;
  int64_t count = 0;
  void* part = nullptr;  ///< null: nothing is copied
};

/// x-hat of some channels, (N, count, S), contiguous in NCHW. The k-th is channel index[k], as choose_slots writes it
/// (channel_slots.h); that of an unused slot is neither written nor read. Sweeps over planes write x-hat beside z, and
/// backward reads it in place of the saved values of these channels, as for Saved::kNormalized. CPU functions only, for
/// NCHW with S > 1 (else std::invalid_argument), where a channel is runs of memory; other functions ignore it.
struct NormalizedChannels {
  const int64_t* index = nullptr;
  int64_t count = 0;
  void* values = nullptr;  ///< null: no channels
};

/// The tensors of a forward pass.
struct AbnForward {
  const void* x = nullptr;
  const void* residual = nullptr;  ///< may be null
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* z = nullptr;             ///< may be x
  void* saved_values = nullptr;  ///< y or x-hat if saves_aside(problem.saved), else ignored; may be x
  /// For Saved::kOutputBit: branch_bytes(elements) zeros, which become the bits.
  uint8_t* branch = nullptr;
  double* mean = nullptr;
  double* var = nullptr;  ///< biased
  double* inv_std = nullptr;
  PartOfChannels x_part = {};          ///< receives channels of x
  NormalizedChannels normalized = {};  ///< abn_forward, abn_apply: written
};

/// Running statistics that a training step moves towards the batch's:
///   running <- (1 - momentum) * running + momentum * batch, with the unbiased variance (over m - 1).
struct RunningStatistics {
  void* mean = nullptr;  ///< (C), the type of weight; null if there are none
  void* var = nullptr;
  double momentum = 0.1;
};

/// The tensors of a backward pass.
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
  /// Receives z again, with the bytes of forward; may be null. Requires is_before_activation(problem.saved).
  void* z = nullptr;
  /// The statistics are constants (eval mode): dx = weight * inv_std * dy, and abn_backward_apply reads no sums.
  bool frozen_statistics = false;
  PartOfChannels dz_part = {};         ///< abn_backward_reduce, abn_backward: receives channels of dz
  PartOfChannels dx_part = {};         ///< abn_backward_apply: channels of dx receive it
  NormalizedChannels normalized = {};  ///< only read
};

namespace cpu {

/// Computes mean[c] and the biased variance var[c] of x. They are summed around a pivot: E[x^2] - E[x]^2
/// would lose all digits if |mean| is large against the standard deviation.
void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var);

/// Computes the statistics of a frozen layer: mean = running_mean, inv_std = 1 / sqrt(running_var + eps).
/// running_mean, running_var: (channels), `dtype`.
void abn_frozen_statistics(DType dtype, int64_t channels, double eps, const void* running_mean,
                           const void* running_var, double* mean, double* inv_std);

/// Computes z and the saved values from x, mean and inv_std.
void abn_apply(const AbnProblem& problem, const AbnForward& forward);

/// The forward pass in training: abn_statistics, inv_std = 1 / sqrt(var + eps), abn_apply. In NCHW a channel
/// stays in cache between the steps. Writes z, the saved values, mean, var and inv_std, with the bytes of the
/// separate calls. Moves the running statistics whose pointers are not null.
void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward,
                 const RunningStatistics& running = {});

/// Computes z again, with the bytes that forward wrote, from saved_values (which may be z), residual, mean
/// and inv_std; ignores x. Requires is_before_activation(problem.saved).
void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward);

/// Computes sum_dy[c] = sum of dy and sum_dy_xhat[c] = sum of dy * x-hat, where dy = dz * act'(y): the
/// gradients of bias and weight. If z is so deep in saturation that y is lost, the lowest y that rounds to z
/// is used.
void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward);

/// Computes dx = weight * inv_std * (dy - sum_dy / m - x-hat * sum_dy_xhat / m), dresidual = dy, and z.
/// `m` is the number of values in the sums: N * S, or more if statistics are synchronized. With frozen statistics
/// dx = weight * inv_std * dy, and sums and m are not read.
void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m);

/// The whole backward pass: abn_backward_reduce, then abn_backward_apply with m = N * S. Between both steps a channel of
/// NCHW stays in cache, as do the channels of a channels-last tensor of at most 128 pixels, and with frozen statistics a
/// piece of any tensor. The bytes are those of the two calls.
void abn_backward(const AbnProblem& problem, const AbnBackward& backward);

}  // namespace cpu

/// The functions over values as plain loops in double, which are the reference of the tests.
namespace reference {

void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var);
void abn_apply(const AbnProblem& problem, const AbnForward& forward);
void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward,
                 const RunningStatistics& running = {});
void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward);
void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward);
void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m);
void abn_backward(const AbnProblem& problem, const AbnBackward& backward);

}  // namespace reference
}  // namespace palimpsest::kernels
