#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <optional>

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
at::Tensor abn(const at::Tensor& x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
               const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
               const AbnOptions& options = {});

/// The same, writing over `x`. Returns `x`.
at::Tensor abn_(at::Tensor x, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                const AbnOptions& options = {});

/// Forward passes, since the program started (or the last reset), of layers that kept x-hat beside z, because a
/// channel's |weight| was too small against its |bias| to recover x-hat from z.
int64_t abn_fallback_count();
void reset_abn_fallback_count();

}  // namespace palimpsest::ops
