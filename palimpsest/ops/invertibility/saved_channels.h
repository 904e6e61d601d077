#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/ops/invertibility/slot_plan.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace palimpsest::ops::invertibility {

/// The normalized x of the non-invertible channels of one layer, in slots that are saved for backward beside
/// the layer's saved tensor. Up to 1 channel in 32 (or one) is saved alone; if there are more (a weight that
/// starts at zero), the whole tensor is saved.
///
/// The number of channels depends on values; shapes in a traced graph must not. So the operators carry both
/// tensors hidden: with shape (0), while the data lie in their storage.
struct SavedChannels {
  bool all = false;   ///< every channel is saved
  at::Tensor values;  ///< (N, count, ...) in the layout of x; undefined if no channel is saved
  /// (count), i64: the channel of each slot, as kernels::choose_slots writes it; undefined if all are saved.
  at::Tensor index;

  SavedChannels() = default;
  /// Takes the tensors of a forward pass, hidden or revealed, for a layer whose saved tensor is `like`.
  SavedChannels(const at::Tensor& hidden_values, const at::Tensor& hidden_index, const at::Tensor& like);

  bool any() const { return values.defined(); }
  /// `like` gives dtype and device if no channel is saved.
  at::Tensor hidden_values(const at::Tensor& like) const;
  at::Tensor hidden_index(const at::Tensor& like) const;
};

/// Chooses the channels of a forward pass over `x`, allocates their memory, and counts them
/// (AbnFallbackStats). On a CPU there are as many slots as non-invertible channels. On a GPU the device
/// chooses, and plan_slots decides the number of slots.
/// `left`: null, or receives the choice instead of layer.choose_slots if nothing but its report is still
/// missing. Then the caller makes it, before the pass ends.
SavedChannels choose_saved_channels(const Layer& layer, const at::Tensor& x,
                                    std::optional<kernels::ChannelSlots>* left = nullptr);

/// Allocates `slots` slots for a pass over `x`.
SavedChannels allocate_saved_channels(int64_t slots, const at::Tensor& x);

/// Returns the same data flat with its real size: code that copies saved tensors (hooks) would lose hidden
/// data. Returns tensors that are not hidden unchanged.
at::Tensor reveal(const at::Tensor& hidden);

/// Raises c10::Error if the forward pass must have saved channels. For a backward pass that received none.
void check_none_was_saved(const Layer& layer, const at::Tensor& saved_values);

/// The saved channels as a separate layer: parts of full-size tensors, contiguous in the layer's layout, and of
/// (C) vectors, contiguous. If all channels are saved, the parts are the whole. The channels of unused slots are
/// computed, too, and not scattered.
class ChannelView {
 public:
  ChannelView(const SavedChannels& channels, const kernels::AbnProblem& problem);

  /// Returns the problem with these channels only.
  const kernels::AbnProblem& problem() const { return problem_; }
  /// Writes part, which has the sizes of gather(full).
  void copy_to(const at::Tensor& full, const at::Tensor& part) const;
  at::Tensor gather(const at::Tensor& full) const;
  /// Returns memory for gather(full).
  at::Tensor empty_part(const at::Tensor& full) const;
  /// Returns the argument by which a pass over the full tensor copies its channels into `part`, or back
  /// (kernels/abn.h); none where the kernels cannot do that.
  std::optional<kernels::PartOfChannels> copied_by_pass(const at::Tensor& part) const;
  /// Returns the argument by which a pass over the full tensor writes or reads `values`, the saved x-hat of the channels;
  /// none where the kernels cannot do that.
  std::optional<kernels::NormalizedChannels> in_pass(const at::Tensor& values) const;
  /// Maps (C) to (count). An undefined vector stays undefined.
  at::Tensor gather_vector(const at::Tensor& vector) const;
  void scatter(const at::Tensor& part, const at::Tensor& full) const;
  void scatter_vector(const at::Tensor& part, const at::Tensor& vector) const;

 private:
  kernels::AbnProblem of_vector(const at::Tensor& vector) const;
  void check_is_part(const at::Tensor& part) const;

  kernels::AbnProblem whole_, problem_;
  at::Tensor index_;  ///< undefined if all channels are saved
};

}  // namespace palimpsest::ops::invertibility
