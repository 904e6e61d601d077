#include "palimpsest/ops/invertibility/saved_channels.h"

#include "palimpsest/kernels/formulas/invertibility.h"
#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/invertibility/copy_channels.h"
#include "palimpsest/ops/invertibility/fallback_stats.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <cstdint>
#include <optional>

namespace palimpsest::ops::invertibility {
namespace {

Layout layout_of(const at::Tensor& t) {
  return preferred_layout(t.sizes(), t.strides());
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

/// Returns the number of channels that are non-invertible now, on a CPU.
int64_t wanted_now(const Layer& layer) {
  kernels::SlotReport report;
  layer.choose_slots({.report = &report, .counts_near = false});
  return kernels::unpack_counts(report.counts).wanted;
}

/// Returns whether the channels of a layer with neither weight nor bias nor residual are invertible.
bool is_invertible_without_parameters(const Layer& layer) {
  const kernels::AbnProblem& p = layer.problem;
  return kernels::InvertibilityCriterion(p.activation, p.dtype, p.activation_param).is_invertible(1, 0, 0);
}

}  // namespace

SavedChannels::SavedChannels(const at::Tensor& hidden_values, const at::Tensor& hidden_index,
                             const at::Tensor& like) {
  const at::Tensor flat = reveal(hidden_values), which = reveal(hidden_index);
  all = which.numel() == 0;
  const int64_t count = all ? like.size(1) : which.numel();
  // A copy of a hidden tensor has shape (0) and a storage of any size: data that do not fit are no channels.
  if (slots_for(count, like.size(1)) != count || flat.numel() != count * (like.numel() / like.size(1))) {
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

SavedChannels choose_saved_channels(const Layer& layer, const at::Tensor& x,
                                    std::optional<kernels::ChannelSlots>* left) {
  if (!host_runs_ahead(backend_of("abn", x))) {
    const int64_t wanted = wanted_now(layer);
    SavedChannels result = allocate_saved_channels(slots_for(wanted, x.size(1)), x);
    kernels::SlotReport report;
    if (result.index.defined())
      layer.choose_slots({.slots = wanted,
                          .index = result.index.mutable_data_ptr<int64_t>(),
                          .report = &report,
                          .counts_near = false});
    return result;
  }
  if (!layer.weight && !layer.bias && !layer.has_residual)  // the same for all values
    return allocate_saved_channels(is_invertible_without_parameters(layer) ? 0 : x.size(1), x);
  const PlannedSlots planned = plan_slots(layer, x);
  SavedChannels result = allocate_saved_channels(planned.count, x);
  const kernels::ChannelSlots choice{
      .slots = planned.count,
      .index = result.index.defined() ? result.index.mutable_data_ptr<int64_t>() : nullptr,
      .report = planned.report,
      .counts_late = !planned.runs_again};
  if (left && !choice.index)
    *left = choice;
  else
    layer.choose_slots(choice);
  return result;
}

SavedChannels allocate_saved_channels(int64_t slots, const at::Tensor& x) {
  if (slots == 0) return {};
  SavedChannels result;
  result.all = slots == x.size(1);
  const auto sizes = channel_sizes(x, slots);
  result.values = at::empty_strided(sizes, contiguous_strides(sizes, layout_of(x)), x.options());
  if (!result.all) result.index = at::empty({slots}, x.options().dtype(at::kLong));
  result.all ? count_saved_layer() : count_saved_channels(slots);
  return result;
}

at::Tensor reveal(const at::Tensor& hidden) {
  if (hidden.sym_numel() != 0 || hidden.storage().sym_nbytes() == 0) return hidden;
  at::Tensor result = hidden.detach();
  const auto elements = hidden.storage().nbytes() / hidden.element_size();
  result.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(elements)});
  return result;
}

void check_none_was_saved(const Layer& layer, const at::Tensor& saved_values) {
  const bool lost = host_runs_ahead(backend_of("abn", saved_values))
                        ? always_had_slots(layer.weight, layer.bias)
                        : wanted_now(layer) > 0;
  TORCH_CHECK(!lost,
              "[abn] backward needs the normalized x of a layer with a non-invertible channel (a weight near "
              "zero), and it is gone: something copied the tensors saved by a compiled graph; run this layer "
              "outside that graph");
}

ChannelView::ChannelView(const SavedChannels& channels, const kernels::AbnProblem& problem)
    : whole_(problem), problem_(problem), index_(channels.index) {
  if (!index_.defined()) return;
  problem_.shape.c = index_.numel();
  if (host_runs_ahead(backend_of("abn", index_))) return;  // only the device knows them
  for (int64_t k = 0; k < index_.numel(); ++k) {
    const int64_t channel = index_.const_data_ptr<int64_t>()[k];
    TORCH_CHECK(channel >= 0 && channel < problem.shape.c, "[abn] the saved channels must be 0 to ",
                problem.shape.c - 1, ", got ", channel, ": something changed the tensors saved for backward");
  }
}

void ChannelView::copy_to(const at::Tensor& full, const at::Tensor& part) const {
  if (index_.defined())
    gather_channels(whole_, index_, full, part);
  else
    part.copy_(full);
}

at::Tensor ChannelView::gather(const at::Tensor& full) const {
  if (!index_.defined()) return full;
  at::Tensor part = empty_part(full);
  gather_channels(whole_, index_, full, part);
  return part;
}

at::Tensor ChannelView::empty_part(const at::Tensor& full) const {
  const auto sizes = channel_sizes(full, problem_.shape.c);
  return at::empty_strided(sizes, contiguous_strides(sizes, whole_.layout), full.options());
}

std::optional<kernels::PartOfChannels> ChannelView::copied_by_pass(const at::Tensor& part) const {
  // In NCHW sweeps write and read the channels themselves (in_pass); on a GPU no kernel copies beside its work.
  const bool can =
      index_.defined() && backend_of("abn", part) == Backend::kCpu && whole_.layout == Layout::kChannelsLast;
  if (!can) return std::nullopt;
  check_is_part(part);
  return kernels::PartOfChannels{index_.const_data_ptr<int64_t>(), index_.numel(), part.mutable_data_ptr()};
}

std::optional<kernels::NormalizedChannels> ChannelView::in_pass(const at::Tensor& values) const {
  constexpr int64_t kLeastPlane =
      32;  // each row is a call, and one shorter than a vector is computed value by value
  const bool can = index_.defined() && backend_of("abn", values) == Backend::kCpu &&
                   whole_.layout == Layout::kNCHW && whole_.shape.s >= kLeastPlane;
  if (!can) return std::nullopt;
  check_is_part(values);
  return kernels::NormalizedChannels{
      index_.const_data_ptr<int64_t>(), index_.numel(),
      const_cast<void*>(values.const_data_ptr())};  // forward made it, backward only reads
}

void ChannelView::check_is_part(const at::Tensor& part) const {
  TORCH_INTERNAL_ASSERT(part.numel() == whole_.shape.n * index_.numel() * whole_.shape.s &&
                        dtype_of(part.scalar_type()) == whole_.dtype &&
                        is_contiguous_in(part.sizes(), part.strides(), whole_.layout));
}

at::Tensor ChannelView::gather_vector(const at::Tensor& vector) const {
  if (!vector.defined() || !index_.defined()) return vector;
  at::Tensor part = at::empty({index_.numel()}, vector.options());
  gather_channels(of_vector(vector), index_, vector, part);
  return part;
}

void ChannelView::scatter(const at::Tensor& part, const at::Tensor& full) const {
  scatter_channels(whole_, index_, part, full);
}

void ChannelView::scatter_vector(const at::Tensor& part, const at::Tensor& vector) const {
  scatter_channels(of_vector(vector), index_, part, vector);
}

kernels::AbnProblem ChannelView::of_vector(const at::Tensor& vector) const {
  return {.shape = {1, whole_.shape.c, 1}, .dtype = dtype_of("abn", vector)};
}

}  // namespace palimpsest::ops::invertibility
