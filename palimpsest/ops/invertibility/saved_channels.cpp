#include "palimpsest/ops/invertibility/saved_channels.h"

#include "palimpsest/ops/abn/device.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/invertibility/criterion.h"
#include "palimpsest/ops/invertibility/predictor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace palimpsest::ops {
namespace {

int64_t rounded_up(int64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

int64_t channel_bytes(const at::Tensor& like) {
  return like.numel() / like.size(1) * static_cast<int64_t>(like.element_size());
}

RecoveryLayer recovery_layer(const AbnSettings& s, const at::Tensor& x) {
  return {s.activation, x.scalar_type(), x.size(1)};
}

RecoveryTensors recovery_tensors(const AbnSettings& s) {
  return {s.weight, s.bias, s.residual, s.relu_residual};
}

}  // namespace

SideChannels choose_side_channels(const AbnSettings& s, const at::Tensor& x) {
  if (!saves_output(s.keep) || x.numel() == 0) return {};
  const auto choice = choose_degenerate_channels(recovery_layer(s, x), recovery_tensors(s), x);
  if (choice) {
    const auto count = static_cast<int64_t>(choice->channels.size());
    if (count > std::max<int64_t>(1, x.size(1) / 32)) return {x.size(1), true, {}};
    return {count, false, choice->index};
  }
  TORCH_WARN_ONCE(
      "[abn] a CUDA graph captures a layer that has not run before: nothing is known of its weight, and it "
      "keeps its normalized x beside z, as much memory again; run one training step before the capture");
  return {x.size(1), true, {}};
}

at::Tensor SideBuffer::hidden(const SideChannels& side, const at::Tensor& x) {
  const auto bytes = x.options().dtype(at::kByte);
  if (!side.any()) return at::empty({0}, bytes);
  at::Tensor result =
      side.whole ? at::empty({x.size(1) * channel_bytes(x)}, bytes)
                 : at::empty({rounded_up(side.count * channel_bytes(x)) + 8 * side.count + 1}, bytes);
  result.unsafeGetTensorImpl()->set_sizes_contiguous({0});  // the bytes stay behind it
  if (!side.whole) SideBuffer(result, x).channels_.index.copy_(side.index);
  return result;
}

at::Tensor SideBuffer::revealed(const at::Tensor& hidden) {
  if (hidden.sym_numel() != 0 || hidden.storage().sym_nbytes() == 0) return hidden;
  at::Tensor result = hidden.detach();
  result.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(hidden.storage().nbytes())});
  return result;
}

SideBuffer::SideBuffer(const at::Tensor& hidden, const at::Tensor& like) {
  const at::Tensor bytes = revealed(hidden).contiguous();
  const int64_t size = bytes.numel();
  if (size == 0) return;
  c10::SmallVector<int64_t, 5> sizes(like.sizes().begin(), like.sizes().end());
  const int64_t type = static_cast<int64_t>(like.element_size()), begin = bytes.storage_offset();
  channels_.whole = size % 2 == 0;
  channels_.count = channels_.whole ? like.size(1) : (size - 1) / (channel_bytes(like) + 8);
  sizes[1] = channels_.count;
  values_ = part_of_storage(bytes, like.scalar_type(), begin / type, sizes,
                            dense_strides(sizes, preferred_layout(like.sizes(), like.strides())));
  if (channels_.whole) return;
  const int64_t index = begin + rounded_up(channels_.count * channel_bytes(like));
  channels_.index = part_of_storage(bytes, at::kLong, index / 8, {channels_.count}, {1});
}

void note_backward(const AbnSettings& s, const at::Tensor& kept) {
  if (abn_device_kernels(kept.device().type()).host_runs_ahead) saw_backward(s.weight, s.bias);
}

void check_nothing_was_left(const AbnSettings& s, const at::Tensor& kept) {
  if (!saves_output(s.keep) || kept.numel() == 0) return;
  const bool lost = abn_device_kernels(kept.device().type()).host_runs_ahead
                        ? always_chose_some(s.weight, s.bias)
                        : !degenerate_channels_now(recovery_layer(s, kept), recovery_tensors(s)).empty();
  TORCH_CHECK(
      !lost,
      "[abn] backward needs the normalized x of a layer with a degenerate channel (a weight near zero), "
      "and it is gone; something copied the tensors saved by a compiled graph: run this layer outside "
      "that graph");
}

SideLayer::SideLayer(const SideChannels& side, const kernels::AbnProblem& layer)
    : layer_(layer), index_(side.index) {
  layer_.shape.c = side.count;
}

at::Tensor SideLayer::gather(const at::Tensor& full) const {
  return dense_in(layer_.layout, full.index_select(1, index_));
}

at::Tensor SideLayer::gather_vector(const at::Tensor& vector) const {
  return vector.defined() ? vector.index_select(0, index_) : vector;
}

void SideLayer::scatter(const at::Tensor& part, const at::Tensor& full) const {
  at::Tensor(full).index_copy_(1, index_, part);
}

void SideLayer::scatter_vector(const at::Tensor& part, const at::Tensor& vector) const {
  at::Tensor(vector).index_copy_(0, index_, part);
}

}  // namespace palimpsest::ops
