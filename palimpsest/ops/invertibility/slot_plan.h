#pragma once

#include "palimpsest/kernels/channel_slots.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

/// How many slots for non-invertible channels (kernels/channel_slots.h) the host allocates for a pass whose
/// values it does not know, because a GPU runs behind it. The device chooses the channels, from the values
/// that the pass reads, and reports how many wanted a slot. The host reads these reports later, without
/// waiting.
namespace palimpsest::ops::invertibility {

/// The layer whose normalized x is to be recovered from the saved tensor.
struct Layer {
  kernels::AbnProblem problem;
  const std::optional<at::Tensor>&weight, &bias;  ///< as the caller gave them: the layer is known by them
  bool has_residual = false;
  /// Calls kernels::choose_slots on the layer's device, and fills in weight, bias and residual.
  std::function<void(kernels::ChannelSlots)> choose_slots;
};

/// Returns the slots for `wanted` channels of `channels`: as many, but all channels if more than 1 in 32 (or
/// one) are wanted.
int64_t slots_for(int64_t wanted, int64_t channels);

/// The slots of one pass.
struct PlannedSlots {
  int64_t count = 0;
  kernels::SlotReport* report = nullptr;
  bool runs_again = false;  ///< a recomputed pass
};

/// Decides the slots of a forward pass of `layer` over `like`.
///
/// The number of slots follows from the near channels of the latest step whose reports have arrived: of that pass of a
/// layer that has the most (of 16 passes), so that a layer that is used several times per step has slots in each use. It
/// may rise when backward ran since, and falls only when weight or bias was written. So the saved tensors of a recomputed
/// pass (memory/recompute.h, torch.utils.checkpoint, palimpsest.checkpoint) have the shapes of those of its first run.
/// (One order of passes breaks this, with the error of the checkpoint: forward A and B, backward B, forward C, backward
/// A, if a channel came near in between.) Weights that nobody writes, or whose writes have no version, follow the latest
/// reports after each backward pass.
///
/// The host waits for the device only
///   - in the first pass of a parameter: a leaf of the graph;
///   - in the first pass of all layers of one kind (device, dtype, activation, channels, pixels) whose weights
///     are computed anew in each pass (parametrizations, functional_call, replicas), which share one plan.
///     Leaves that require no gradient share it, too, after the first 256 of their kind;
///   - in the first pass after weight or bias was written more or less often than by an optimizer's step
///     (values were loaded). Up to 4 writes are a step until one is known, if backward ran before them.
/// It never waits while a CUDA graph is captured. All channels are saved then if nothing is known.
/// A wanted channel that finds no slot has an inexact gradient in that pass. The device counts it, the next
/// pass warns (once per program), and has more slots.
PlannedSlots plan_slots(const Layer& layer, const at::Tensor& like);

/// Notes that the layer's backward pass ran: the next writes may be an optimizer's step.
void note_backward(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

/// Returns whether all passes with the present values of weight and bias had slots. Includes passes whose
/// backward has not run yet.
bool always_had_slots(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias);

/// Returns how often plan_slots has waited for a report since the program started.
int64_t host_waits();

/// Returns the channels that wanted a slot and found none since the program started, as far as reports have
/// arrived.
int64_t late_channels();

}  // namespace palimpsest::ops::invertibility
