#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::ops {

/// Whether a channel is degenerate: its normalized x cannot be recovered from z well enough for gradients of
/// relative error 1e-5 (f32) or 1e-10 (f64). x-hat = (y - bias) / weight, and y is stored with an error of
/// about ulp(max|y|):
///   eps * (|bias| + 4 |weight|) / |weight| > tolerance,     four standard deviations being the reach of
///   x-hat;
/// weight = 0 always is. ELU stores a negative y as exp(y) - 1, with an error of eps * exp(-y) in y, whose
/// root mean square over a normal x-hat grows as exp(weight^2 - bias): it must stay below tolerance *
/// |weight| as well. `tolerance` is 64 eps in f32 (|bias| > 60 |weight| is degenerate) and 1e-10 in f64.
/// weight, bias: (C) of one dtype, f32 or f64, on the CPU; absent: 1 and 0.
bool any_degenerate(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                    Activation activation);

/// Notes one forward pass that kept x-hat for such a channel (abn_fallback_count in ops/abn.h reads the sum).
void count_fallback();

}  // namespace palimpsest::ops
