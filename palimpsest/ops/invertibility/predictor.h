#pragma once

#include "palimpsest/ops/invertibility/criterion.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

/// Where the values come from that decide which channels are degenerate (ops/invertibility/criterion.h).
namespace palimpsest::ops {

/// The tensors of one call of a layer, on its device.
struct RecoveryTensors {
  const std::optional<at::Tensor>&weight, &bias, &residual;
  bool relu_residual = false;
};

/// The degenerate channels by what the tensors hold now; waits for their device. rms(residual) is that of a
/// sample of its pixels, the same one every time.
std::vector<int64_t> degenerate_channels_now(const RecoveryLayer& layer, const RecoveryTensors& tensors);

/// The degenerate channels, as a forward pass over `like` finds them.
struct RecoveryChoice {
  std::vector<int64_t> channels;
  at::Tensor index;  ///< the same on the device, i64; undefined if there are none
};

/// On the CPU by what the tensors hold now. Where the host runs ahead of the device (AbnDeviceKernels), so
/// that reading a weight would wait for all that is queued, by less: each forward pass queues a copy of
/// weight and bias to the host behind itself, and the next one reads that copy: values of the pass before,
/// with four times as much about them as they moved between the two before that (but no more than three
/// quarters of a weight). So the host is at most one pass of the layer ahead, and every run decides alike.
/// The residual is sampled on every 16th pass.
///   A layer's first pass waits and reads what the tensors hold, and so does one before which weight and bias
/// were written another number of times than between the passes before: not an optimizer's step, but somebody
/// who loaded values. (The first writes, up to 4, are an optimizer's if the layer's backward ran before them;
/// a weight may lose three quarters of itself in them.) So does every pass of a layer with a residual and
/// neither weight nor bias.
///   While a CUDA graph is captured nothing is read or queued: the last pass's choice holds for all replays.
/// Absent: there was none.
///   A channel that turned degenerate in one step, by more than that, has a gradient of few digits (none, at
/// weight 0) for one step; the next pass finds out, warns once and counts (abn_missed_channel_count).
std::optional<RecoveryChoice> choose_degenerate_channels(const RecoveryLayer& layer,
                                                         const RecoveryTensors& tensors,
                                                         const at::Tensor& like);

/// A layer's backward tells that it ran: what is written next may be an optimizer's step.
void saw_backward(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

/// Whether every choice for `weight` as it is now found a degenerate channel. A pass that waits for its
/// backward is one of them, as weight must not be written in between.
bool always_chose_some(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

/// How often choose_degenerate_channels has waited for tensors' values, since the program started.
int64_t recovery_waits();

}  // namespace palimpsest::ops
