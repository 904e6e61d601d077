#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/ops/invertibility/predictor.h"

#include <ATen/core/Tensor.h>

namespace palimpsest::ops::invertibility {

/// The normalized x of the non-invertible channels of one layer, saved for backward beside z. Up to 1 channel
/// in 32 (at least one) is saved by itself; with more (a weight that starts at zero) the whole tensor is
/// saved.
///
/// The number of channels depends on values, which shapes in a traced graph must not. So the operators carry
/// both tensors hidden: with shape (0), while the data lie in their storage.
struct SavedChannels {
  bool all = false;   ///< every channel is saved
  at::Tensor values;  ///< (N, count, ...) in the layout of x; undefined if no channel is saved
  at::Tensor index;   ///< (count), i64: which channels; undefined if all are saved

  SavedChannels() = default;
  /// The tensors of a forward pass, hidden or revealed, for a layer whose saved tensor is `like`.
  SavedChannels(const at::Tensor& hidden_values, const at::Tensor& hidden_index, const at::Tensor& like);

  bool any() const { return values.defined(); }
  /// `like` gives dtype and device if no channel is saved.
  at::Tensor hidden_values(const at::Tensor& like) const;
  at::Tensor hidden_index(const at::Tensor& like) const;
};

/// Allocates memory for the non-invertible channels of a forward pass over `x`, and counts them
/// (AbnFallbackStats). Without a choice all channels are saved.
SavedChannels allocate_saved_channels(const std::optional<Choice>& choice, const at::Tensor& x);

/// The same data with its real size, flat: code that copies saved tensors (hooks) would lose hidden data.
/// Tensors that are not hidden are returned as they are.
at::Tensor reveal(const at::Tensor& hidden);

/// For a backward pass to which no saved channels arrived: raises c10::Error if the forward pass must have
/// saved some.
void check_none_was_saved(const Layer& layer, const Tensors& tensors, const at::Tensor& saved_values);

/// The saved channels as a layer by themselves: parts of full-size tensors and of (C) vectors, contiguous in
/// one layout.
class ChannelView {
 public:
  ChannelView(const SavedChannels& channels, const kernels::AbnProblem& problem);

  /// The problem with these channels only.
  const kernels::AbnProblem& problem() const { return problem_; }
  at::Tensor gather(const at::Tensor& full) const;
  /// (C) -> (count); undefined stays undefined.
  at::Tensor gather_vector(const at::Tensor& vector) const;
  void scatter(const at::Tensor& part, const at::Tensor& full) const;
  void scatter_vector(const at::Tensor& part, const at::Tensor& vector) const;

 private:
  kernels::AbnProblem problem_;
  at::Tensor index_;
};

}  // namespace palimpsest::ops::invertibility
