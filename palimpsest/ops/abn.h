#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

/// The fused layer as an operator on tensors: batch normalization, then an invertible activation.
///   y[n,c,...] = weight[c] * (x[n,c,...] - mean[c]) / sqrt(var[c] + eps) + bias[c],   z = act(y)
/// Backward recovers y and the normalized x from z, so that z is the only full-size tensor the layer keeps,
/// and the convolution behind it keeps that one anyway. Python sees the same two as torch.ops.palimpsest.abn
/// and abn_.
///
/// x:       (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W); f32 or f64. Contiguous and channels-last run
/// natively
///          and keep their strides; any other stride costs one copy.
/// weight, bias (absent: 1 and 0), running_mean, running_var (both or none): (C), f32 (f64 for f64 x). weight
/// may
///          have any sign; a degenerate channel (ops/degenerate.h) makes the layer keep the normalized x as
///          well.
/// Training takes the batch's statistics and moves the running ones towards them (the variance as the
/// unbiased one); else the running ones are used: that is frozen batch normalization, and differentiable too.
/// Gradients: x, weight, bias, each computed only where asked for. A second derivative is an error.
/// Errors: c10::Error "[abn] requirement, got value" for every argument that does not fit.
/// Source: Rota Bulo, Porzi, Kontschieder, "In-Place Activated BatchNorm for Memory-Optimized Training of
/// DNNs", CVPR 2018.
namespace palimpsest::ops {

/// Arguments of the layer that are not tensors; the defaults are those of torch.ops.palimpsest.abn.
struct AbnOptions {
  bool training = true;   ///< batch statistics (and the running ones updated); false: the running statistics
  double momentum = 0.1;  ///< running <- (1 - momentum) * running + momentum * batch
  double eps = 1e-5;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;  ///< leaky ReLU's slope or ELU's alpha
};

/// Batch normalization + activation; a fresh output, which is the only full-size tensor kept for backward.
at::Tensor abn(const at::Tensor& x, const std::optional<at::Tensor>& weight,
               const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
               const std::optional<at::Tensor>& running_var, const AbnOptions& options = {});

/// The same, writing over `x`. Returns `x`.
/// Refused where a gradient is wanted and the overwritten value is not ours to lose: a leaf that requires
/// grad or a view of one, and an output of chunk, split or unbind; always: memory that overlaps itself.
/// Ordinary views are fine. As with every in-place operation of libtorch, what runs under no_grad leaves no
/// trace in the graph: an `x` that belongs to a graph and is overwritten there has wrong gradients
/// afterwards, without an error.
at::Tensor abn_(at::Tensor x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                const AbnOptions& options = {});

/// Forward passes, since the program started (or the last reset), of layers that kept x-hat beside z, because
/// a channel's |weight| was too small against its |bias| to recover x-hat from z.
int64_t abn_fallback_count();
void reset_abn_fallback_count();

}  // namespace palimpsest::ops
