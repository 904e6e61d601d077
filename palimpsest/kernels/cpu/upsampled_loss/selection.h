#pragma once

#include "palimpsest/kernels/upsampled_loss.h"

#include <cstdint>

namespace palimpsest::kernels::cpu::upsampled_loss {

/// Marks the pixels of image n that bootstrapping selects. `losses`: -log p[t] of each pixel, from a
/// computation in T; NaN is allowed. `selected` holds 1 for each pixel that is not ignored, and keeps 1 for
/// those that are selected. The losses of pixels that are as hard as the last one, within the error of T, are
/// computed again in f64.
template <class T>
void select_hardest(const UpsampledProblem& problem, const T* x, const CrossEntropyTargets& targets,
                    const CrossEntropyRules& rules, int64_t n, const T* losses, uint8_t* selected);

}  // namespace palimpsest::kernels::cpu::upsampled_loss
