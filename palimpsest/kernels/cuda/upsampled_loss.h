#pragma once

#include "palimpsest/kernels/cuda/stream.h"
#include "palimpsest/kernels/upsampled_loss.h"

#include <cstdint>

/// kernels/upsampled_loss.h on NVIDIA GPUs, over memory of the current device, in steps: the caller ranks the
/// pixels for bootstrapping between them. Every pointer, weights included, is device memory. Each function is
/// one or two launches on `stream` and returns as soon as they are queued. Additions have a fixed order: every
/// run gives the same bytes. An image has less than 2^31 pixels. Errors: std::runtime_error if a launch fails. A build without CUDA (no_cuda/)
/// always throws std::invalid_argument.
namespace palimpsest::kernels::cuda {

/// Bytes of device memory for the parts of the sums of upsampled_losses.
int64_t upsampled_losses_workspace_bytes(const UpsampledProblem& problem);

struct UpsampledLosses {
  /// (N, H, W): log sum_c exp(z[c]), for upsampled_gradient; 0 where no pixel counts. In f64: in f32 large logits
  /// would leave no digits to the probabilities.
  double* log_sum = nullptr;
  /// (N, H, W), f64: -log p[t], computed in f64, and -infinity for an ignored pixel; +infinity for NaN. Null:
  /// not asked for.
  double* hardness = nullptr;
  /// Of the pixels that count: sum of l, sum of w[t], their number, and the place of the first wrong target or
  /// a number above all places.
  double* sums = nullptr;
  void* workspace = nullptr;  ///< upsampled_losses_workspace_bytes()
};

/// `selected`: (N, H, W), 0 for a pixel that does not count; null: all that are not ignored do. A target that is
/// no class is treated as ignored. Uses of `rules`: weight and label_smoothing.
void upsampled_losses(const UpsampledProblem& problem, const void* x, const CrossEntropyTargets& targets,
                      const CrossEntropyRules& rules, const uint8_t* selected, const UpsampledLosses& out,
                      Stream stream);

/// Writes the gradient of the sum of l over the pixels that count with x. `log_sum` comes from
/// upsampled_losses with the same `selected`.
void upsampled_gradient(const UpsampledProblem& problem, const void* x, const CrossEntropyTargets& targets,
                        const CrossEntropyRules& rules, const uint8_t* selected, const double* log_sum,
                        void* gradient, Stream stream);

/// Writes class ids as i64.
void upsampled_argmax(const UpsampledProblem& problem, const void* x, int64_t* ids, Stream stream);

}  // namespace palimpsest::kernels::cuda
