#include "palimpsest/ops/invertibility/saved_channels.h"

#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/invertibility/fallback_stats.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstdint>

namespace palimpsest::ops::invertibility {
namespace {

Layout layout_of(const at::Tensor& t) {
  return preferred_layout(t.sizes(), t.strides());
}

int64_t most_saved_one_by_one(int64_t channels) {
  return std::max<int64_t>(1, channels / 32);
}

/// Returns (N, count, ...) for a layer whose saved tensor is `like`.
c10::SmallVector<int64_t, 5> channel_sizes(const at::Tensor& like, int64_t count) {
  c10::SmallVector<int64_t, 5> sizes(like.sizes().begin(), like.sizes().end());
  sizes[1] = count;
  return sizes;
}

at::Tensor hide(const at::Tensor& t, const at::Tensor& like, at::ScalarType dtype) {
  if (!t.defined()) return at::empty({0}, like.options().dtype(dtype));
  return part_of_storage(t, dtype, t.storage_offset(), {0}, {1});
}

}  // namespace

SavedChannels::SavedChannels(const at::Tensor& hidden_values, const at::Tensor& hidden_index,
                             const at::Tensor& like) {
  const at::Tensor flat = reveal(hidden_values), which = reveal(hidden_index);
  all = which.numel() == 0;
  const int64_t count = all ? like.size(1) : which.numel();
  // A copy of a hidden tensor has shape (0) and a storage of any size: data that do not fit are no channels.
  if (count > (all ? like.size(1) : most_saved_one_by_one(like.size(1))) ||
      flat.numel() != count * (like.numel() / like.size(1))) {
    all = false;
    return;
  }
  if (!all) index = which.contiguous();
  const auto sizes = channel_sizes(like, count);
  const at::Tensor contiguous = flat.contiguous();
  values = part_of_storage(contiguous, like.scalar_type(), contiguous.storage_offset(), sizes,
                           contiguous_strides(sizes, layout_of(like)));
}

at::Tensor SavedChannels::hidden_values(const at::Tensor& like) const {
  return hide(values, like, like.scalar_type());
}

at::Tensor SavedChannels::hidden_index(const at::Tensor& like) const {
  return hide(index, like, at::kLong);
}

SavedChannels allocate_saved_channels(const std::optional<Choice>& choice, const at::Tensor& x) {
  if (!choice) {
    TORCH_WARN_ONCE(
        "[abn] a CUDA graph captures a layer that has not run before: its weight is not known, and the layer "
        "saves its normalized x beside z, which doubles its memory; run one training step before the "
        "capture");
  }
  const auto count = choice ? static_cast<int64_t>(choice->channels.size()) : x.size(1);
  if (count == 0) return {};
  SavedChannels result;
  result.all = !choice || count > most_saved_one_by_one(x.size(1));
  const auto sizes = channel_sizes(x, result.all ? x.size(1) : count);
  result.values = at::empty_strided(sizes, contiguous_strides(sizes, layout_of(x)), x.options());
  if (!result.all) result.index = choice->index;
  result.all ? count_saved_layer() : count_saved_channels(count);
  return result;
}

at::Tensor reveal(const at::Tensor& hidden) {
  if (hidden.sym_numel() != 0 || hidden.storage().sym_nbytes() == 0) return hidden;
  at::Tensor result = hidden.detach();
  const auto elements = hidden.storage().nbytes() / hidden.element_size();
  result.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(elements)});
  return result;
}

void check_none_was_saved(const Layer& layer, const Tensors& tensors, const at::Tensor& saved_values) {
  const bool lost = host_runs_ahead(backend_of("abn", saved_values))
                        ? always_chose_some(tensors.weight, tensors.bias)
                        : !non_invertible_channels_now(layer, tensors).empty();
  TORCH_CHECK(!lost,
              "[abn] backward needs the normalized x of a layer with a non-invertible channel (a weight near "
              "zero), and it is gone: something copied the tensors saved by a compiled graph; run this layer "
              "outside that graph");
}

ChannelView::ChannelView(const SavedChannels& channels, const kernels::AbnProblem& problem)
    : problem_(problem), index_(channels.index) {
  problem_.shape.c = channels.index.numel();
}

at::Tensor ChannelView::gather(const at::Tensor& full) const {
  return contiguous_in(problem_.layout, full.index_select(1, index_));
}

at::Tensor ChannelView::gather_vector(const at::Tensor& vector) const {
  return vector.defined() ? vector.index_select(0, index_) : vector;
}

void ChannelView::scatter(const at::Tensor& part, const at::Tensor& full) const {
  at::Tensor(full).index_copy_(1, index_, part);
}

void ChannelView::scatter_vector(const at::Tensor& part, const at::Tensor& vector) const {
  at::Tensor(vector).index_copy_(0, index_, part);
}

}  // namespace palimpsest::ops::invertibility
