#pragma once

#include "palimpsest/kernels/abn.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

/// The fused layer as an operator on tensors: batch normalization, then an activation,
///   y[n,c,...] = weight[c] * (x[n,c,...] - mean[c]) / sqrt(var[c] + eps) + bias[c] (+ residual[n,c,...])
///   z          = act(y)
/// One full-size tensor is saved for backward; `AbnOptions::saved` chooses which. The default is z: backward
/// recovers y and the normalized x from z, and the convolution that reads z saves z in any case.
/// Python: torch.ops.palimpsest.abn and abn_.
///
/// x:        (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W); f32, f64, f16 or bf16; CPU or CUDA.
///           Contiguous and channels-last tensors run natively and keep their strides; any other strides cost
///           one copy.
/// norm:     four vectors of C values. Arithmetic is f32 (f64 for f64 x). weight may have any sign. If the
///           saved tensor (z or y) does not determine the normalized x of a channel, the normalized x of this
///           channel is saved as well (abn_fallback_stats).
/// residual: shape and dtype of x, any strides; added before the activation. Backward reads the residual
///           again, so the caller must not change it. (The readers of z and of the residual save both in any
///           case.)
/// Training normalizes with the statistics of the batch and moves the running statistics towards them, with
/// the unbiased variance. Otherwise the layer normalizes with the running statistics (frozen batch
/// normalization), and is also differentiable.
/// Gradients: x, weight, bias and residual, each only if it requires one. Double backward is an error.
/// Statistics over a process group (AbnOptions::group): the ranks of the group normalize with mean and
/// variance of all their batches together, which may differ in size and be empty. Forward gathers 2 C + 1
/// numbers per rank, backward adds 2 C: one collective each. Every rank gets the same statistics and running
/// statistics, to the last bit. The gradients of weight and bias are those of the rank's own batch, as
/// torch.nn.SyncBatchNorm has them: data parallelism adds them up. A segment that backward runs again makes
/// no second collective (base/segment_log.h).
/// Errors: c10::Error "[abn] requirement, got value".
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018.
namespace palimpsest::ops {

using kernels::Saved;         ///< names the full-size tensor that is saved for backward
using kernels::saves_aside;   ///< true if a tensor beside x and z is saved
using kernels::saves_output;  ///< true if z is saved; abn_ then writes z over x

/// The vectors of a batch normalization: (C) each, any stride; f32 (f64 for f64 x; for 16-bit x also the
/// dtype of x). An absent weight is 1 and an absent bias is 0. running_mean and running_var are both present
/// or both absent.
struct NormalizationTensors {
  std::optional<at::Tensor> weight{}, bias{}, running_mean{}, running_var{};
};

/// The arguments of the layer that are not tensors; the defaults are those of torch.ops.palimpsest.abn.
struct AbnOptions {
  bool training = true;   ///< true: statistics of the batch; false: running statistics
  double momentum = 0.1;  ///< running <- (1 - momentum) * running + momentum * batch
  double eps = 1e-5;
  Activation activation = Activation::kLeakyReLU;
  /// Leaky ReLU's slope, in [0, 1], or ELU's alpha, 0 or above. 0 is exactly ReLU (see saved_for).
  double activation_param = 0.01;
  /// The full-size tensor that is saved for backward. kOutput and kOutputForm1 need an invertible activation;
  /// kOutputBit saves one more bit per element and needs an activation with two branches (has_branches). The
  /// other values accept any activation, but save memory only if the next operator does not save z (use
  /// abn_conv).
  Saved saved = Saved::kOutput;
  /// Adds max(residual, 0) instead of the residual, whose producer leaves the ReLU to its readers.
  bool relu_residual = false;
  /// The name of a process group (distributed/process_group.h; in Python: group.group_name) whose ranks share
  /// the statistics of the batch. Empty: the statistics are those of this process. Without effect if
  /// `training` is false.
  std::string group{};
};

/// Returns the tensor that the layer saves for an x of this dtype: `options.saved`, or kPreActivation if
/// `saved` names the output, and leaky ReLU's slope or ELU's alpha is 0 or too small for the dtype to recover
/// y from z (below 4.8e-7 in f16, 7.9e-31 in bf16, 1.5e-33 in f32, 2.2e-298 in f64). abn then saves y in
/// place of z: the layer and an operator that saves z keep two full-size tensors. abn_ writes z over x and
/// saves y in a new tensor. abn_conv saves y alone.
Saved saved_for(const AbnOptions& options, at::ScalarType dtype);

/// Batch normalization + activation; the output is a new tensor.
at::Tensor abn(const at::Tensor& x, const NormalizationTensors& norm, const AbnOptions& options = {},
               const std::optional<at::Tensor>& residual = std::nullopt);

/// Does the same, but writes the saved tensor over `x`:
///   kOutput, kOutputForm1, kOutputBit   x becomes z and is returned
///   kPreActivation, kNormalized         x becomes y or the normalized x, and the result is a new tensor
///   kInput                              an error
/// An operator that saved x before reports the change in its backward. Under no_grad, autograd does not
/// record the change, as for every in-place operation of libtorch: gradients through x are wrong then,
/// without an error.
/// Errors if a gradient is required: x is a leaf that requires grad, a view of such a leaf, a view that was
/// made under no_grad, or an output of chunk, split or unbind. Errors in any case: x overlaps itself in
/// memory, shares memory with the residual or a vector of `norm`, or is an inference tensor outside
/// inference mode. Ordinary views are accepted.
at::Tensor abn_(at::Tensor x, const NormalizationTensors& norm, const AbnOptions& options = {},
                const std::optional<at::Tensor>& residual = std::nullopt);

/// Counts how often layers saved more than one tensor because |weight| was too small to recover the
/// normalized x from z or y (kernels/formulas/invertibility.h), over all forward passes since the program
/// started or the last reset.
struct AbnFallbackStats {
  /// Passes that saved the normalized x of all channels: more than 1 channel in 32 needed it.
  int64_t layers = 0;
  /// Channels that were saved one by one, in passes where at most 1 channel in 32 (or one) needed it. On a
  /// GPU the slots of channels that may need it within a step are counted, too.
  int64_t channels = 0;
  /// Channels whose gradient was computed from z or y although it did not determine their normalized x, as
  /// far as the device has reported them. Only on a GPU, where the host plans the slots before it knows the
  /// values (ops/invertibility/slot_plan.h).
  int64_t late = 0;
};
AbnFallbackStats abn_fallback_stats();
void reset_abn_fallback_stats();

}  // namespace palimpsest::ops
