#pragma once

#include "palimpsest/kernels/abn.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

/// The fused layer as an operator on tensors: batch normalization, then an activation.
///   y[n,c,...] = weight[c] * (x[n,c,...] - mean[c]) / sqrt(var[c] + eps) + bias[c] (+ residual[n,c,...]),
///   z = act(y)
/// Backward starts from one full-size tensor, which `AbnOptions::keep` chooses; by default it is z, from
/// which y and the normalized x are recovered, and which the convolution behind keeps anyway. Python sees the
/// same two as torch.ops.palimpsest.abn and abn_.
///
/// x:       (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W); f32, f64, f16 or bf16. Contiguous and
///          channels-last run natively and keep their strides; any other stride costs one copy.
/// weight, bias (absent: 1 and 0), running_mean, running_var (both or none): (C), f32 (f64 for f64 x, and for
///          16-bit x also its own type); maths and statistics are in f32 or f64. weight may have any sign;
///          degenerate channels (ops/invertibility/criterion.h) keep their normalized x as well.
/// residual: of x's shape and dtype, any strides: added before the activation. It must stay as it is until
///          backward, which reads it again; the two consumers of z and residual keep both anyway.
/// Training takes the batch's statistics and moves the running ones towards them (the variance as the
/// unbiased one); else the running ones are used: that is frozen batch normalization, and differentiable too.
/// Gradients: x, weight, bias, residual, each computed only where asked for. A second derivative is an error.
/// Errors: c10::Error "[abn] requirement, got value" for every argument that does not fit.
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018.
namespace palimpsest::ops {

using kernels::is_before_activation;
using kernels::Saved;
using kernels::saves_aside;
using kernels::saves_output;

/// Arguments of the layer that are not tensors; the defaults are those of torch.ops.palimpsest.abn.
struct AbnOptions {
  bool training = true;   ///< batch statistics (and the running ones updated); false: the running statistics
  double momentum = 0.1;  ///< running <- (1 - momentum) * running + momentum * batch
  double eps = 1e-5;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;  ///< leaky ReLU's slope or ELU's alpha
  /// The full-size tensor that is kept for backward. kOutput and kOutputForm1 need an invertible activation,
  /// kOutputBit, which keeps one bit an element beside z, GELU or SiLU; the others take any, and pay where
  /// z's consumer keeps z, too (abn_conv does not).
  Saved keep = Saved::kOutput;
  bool relu_residual =
      false;  ///< add max(residual, 0): for a residual whose producer left the ReLU to its readers
};

/// Batch normalization + activation; a fresh output.
at::Tensor abn(const at::Tensor& x, const std::optional<at::Tensor>& weight,
               const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
               const std::optional<at::Tensor>& running_var, const AbnOptions& options = {},
               const std::optional<at::Tensor>& residual = std::nullopt);

/// The same, writing what is kept over `x`. Where that is z (saves_output), returns `x`. For kPreActivation and
/// kNormalized, x becomes y or the normalized x and the result is fresh: x is used up, and autograd, which is
/// not told, reports at backward only operators that saved x before. kInput has nothing to write: an error.
/// Refused where a gradient is wanted and the overwritten value is not ours to lose: a leaf that requires
/// grad or a view of one, and an output of chunk, split or unbind; always: memory that overlaps itself.
/// Ordinary views are fine. As with every in-place operation of libtorch, what runs under no_grad leaves no
/// trace in the graph: an `x` that belongs to a graph and is overwritten there has wrong gradients
/// afterwards, without an error.
at::Tensor abn_(at::Tensor x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                const AbnOptions& options = {}, const std::optional<at::Tensor>& residual = std::nullopt);

/// Forward passes, since the program started (or the last reset), of layers that kept the normalized x of all
/// their channels beside z, because more than one channel in 32 had a |weight| too small to recover it.
int64_t abn_fallback_count();
/// Channels whose normalized x was kept in a side buffer, in all forward passes: too few to fall back.
int64_t abn_side_channel_count();
/// Channels whose gradient in one step came from z though z could not give it, as their weight vanished
/// within that step; on a GPU, where the host decides by the values of the step before
/// (ops/invertibility/predictor.h).
int64_t abn_missed_channel_count();
void reset_abn_fallback_count();

}  // namespace palimpsest::ops
