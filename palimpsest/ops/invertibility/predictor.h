#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

/// Decides which channels of a forward pass are non-invertible. On a CPU it reads the values that the tensors
/// hold now, on a GPU values that the host knows without waiting.
namespace palimpsest::ops::invertibility {

/// The layer whose normalized x is to be recovered from z.
struct Layer {
  Activation activation = Activation::kLeakyReLU;
  at::ScalarType storage = at::kFloat;  ///< dtype of z
  int64_t channels = 0;
  double activation_param = 1;
};

/// The tensors of one call of a layer, on its device.
struct Tensors {
  const std::optional<at::Tensor>&weight, &bias, &residual;
  bool relu_residual = false;
};

/// Returns the non-invertible channels for the values that the tensors hold now. Blocks until these are on
/// the host. rms(residual) is computed over a fixed sample of its pixels.
std::vector<int64_t> non_invertible_channels_now(const Layer& layer, const Tensors& tensors);

/// The non-invertible channels of one forward pass.
struct Choice {
  std::vector<int64_t> channels;
  at::Tensor index;  ///< the same on the device, i64; undefined if there are none
};

/// Returns the non-invertible channels of a forward pass over `like`, or nothing if they are not known.
/// 1. CPU: reads weight and bias now.
/// 2. GPU: reads the copy of weight and bias that the previous forward pass of the layer queued; waits for
///    that pass at most. Margin: 4 times the last change, at most 75 % of a weight. The residual is sampled
///    in every 16th pass.
/// 3. GPU, first forward pass, or a pass before which weight or bias was written more or less often than by
///    an optimizer's step (values were loaded): waits once for the values. The first writes, up to 4, count
///    as an optimizer's step if the layer's backward ran before them. A layer with a residual and neither
///    weight nor bias waits in every pass.
/// 4. While a CUDA graph is captured: returns the choice of the last pass, which holds for every replay;
///    nothing if there was no pass.
/// A channel that becomes non-invertible faster than predicted has an inexact gradient for one step. The next
/// pass warns (once per program) and counts the channel (AbnFallbackStats::late).
std::optional<Choice> choose_channels(const Layer& layer, const Tensors& tensors, const at::Tensor& like);

/// Notes that the layer's backward pass ran: the next writes may be an optimizer's step.
void saw_backward(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

/// Returns whether every choice for the present values of `weight` found a non-invertible channel. This
/// includes passes whose backward has not run yet, because the weight must not be written before it.
bool always_chose_some(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

/// Returns how often choose_channels has waited for values since the program started.
int64_t host_waits();

}  // namespace palimpsest::ops::invertibility
