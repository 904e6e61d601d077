#include "palimpsest/ops/side_channels.h"

#include "palimpsest/ops/degenerate.h"
#include "palimpsest/ops/layout.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

namespace palimpsest::ops {

SideChannels find_side_channels(const AbnSettings& s, const at::Tensor& x) {
  SideChannels result;
  if (!keeps_output(s.keep) || x.numel() == 0) return result;
  const int64_t channels = x.size(1);
  result.channels = degenerate_channels(
      {s.weight, s.bias, s.residual, s.relu_residual, s.activation, x.scalar_type(), channels});
  result.whole = static_cast<int64_t>(result.channels.size()) > std::max<int64_t>(1, channels / 32);
  return result;
}

SideLayer::SideLayer(const SideChannels& side, const kernels::AbnLayer& layer, at::Device device)
    : layer_(layer), index_(at::tensor(side.channels).to(device)) {
  layer_.shape.c = static_cast<int64_t>(side.channels.size());
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
