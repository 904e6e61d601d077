#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/ops/invertibility/predictor.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::ops::invertibility {

/// The normalized x of the non-invertible channels of one layer, saved for backward beside z. Up to 1 channel
/// in 32 (or one) is saved alone; if there are more (a weight that starts at zero), the whole tensor is
/// saved.
///
/// The number of channels depends on values; shapes in a traced graph must not. So the operators carry both
/// tensors hidden: with shape (0), while the data lie in their storage.
struct SavedChannels {
  bool all = false;   ///< every channel is saved
  at::Tensor values;  ///< (N, count, ...) in the layout of x; undefined if no channel is saved
  at::Tensor index;   ///< (count), i64: which channels; undefined if all are saved

  SavedChannels() = default;
  /// Takes the tensors of a forward pass, hidden or revealed, for a layer whose saved tensor is `like`.
  SavedChannels(const at::Tensor& hidden_values, const at::Tensor& hidden_index, const at::Tensor& like);

  bool any() const { return values.defined(); }
  /// `like` gives dtype and device if no channel is saved.
  at::Tensor hidden_values(const at::Tensor& like) const;
  at::Tensor hidden_index(const at::Tensor& like) const;
};

/// Allocates memory for the non-invertible channels of a forward pass over `x`, and counts them
/// (AbnFallbackStats). All channels are saved if there is no choice.
SavedChannels allocate_saved_channels(const std::optional<Choice>& choice, const at::Tensor& x);

/// Returns the same data flat with its real size: code that copies saved tensors (hooks) would lose hidden
/// data. Returns tensors that are not hidden unchanged.
at::Tensor reveal(const at::Tensor& hidden);

/// Raises c10::Error if the forward pass must have saved channels. For a backward pass that received none.
void check_none_was_saved(const Layer& layer, const Tensors& tensors, const at::Tensor& saved_values);

/// The saved channels as a separate layer: parts of full-size tensors and of (C) vectors, contiguous in one
/// layout.
class ChannelView {
 public:
  ChannelView(const SavedChannels& channels, const kernels::AbnProblem& problem);

  /// Returns the problem with these channels only.
  const kernels::AbnProblem& problem() const { return problem_; }
  at::Tensor gather(const at::Tensor& full) const;
  /// Maps (C) to (count). An undefined vector stays undefined.
  at::Tensor gather_vector(const at::Tensor& vector) const;
  void scatter(const at::Tensor& part, const at::Tensor& full) const;
  void scatter_vector(const at::Tensor& part, const at::Tensor& vector) const;

 private:
  kernels::AbnProblem problem_;
  at::Tensor index_;
};

}  // namespace palimpsest::ops::invertibility
