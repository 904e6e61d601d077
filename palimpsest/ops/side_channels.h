#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/abn.h"
#include "palimpsest/ops/abn_inner.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::ops {

/// The degenerate channels of one layer and where their normalized x is kept: in a side buffer of a channel
/// in 32 (at least one), or, if there are more of them (a weight initialized to zero), for the whole layer.
/// What forward decides, backward decides again from the same tensors.
struct SideChannels {
  std::vector<int64_t> channels;
  bool whole = false;

  bool any() const { return !channels.empty(); }
};
SideChannels find_side_channels(const AbnSettings& settings, const at::Tensor& x);

/// The parts of full-size tensors and of (C) vectors that belong to those channels, dense in one layout, so
/// that the kernels can work on them as on a layer of its own.
class SideLayer {
 public:
  SideLayer(const SideChannels& side, const kernels::AbnLayer& layer, at::Device device);

  kernels::AbnLayer layer() const { return layer_; }
  at::Tensor gather(const at::Tensor& full) const;
  /// Of (C) vectors; undefined stays undefined.
  at::Tensor gather_vector(const at::Tensor& vector) const;
  void scatter(const at::Tensor& part, const at::Tensor& full) const;
  void scatter_vector(const at::Tensor& part, const at::Tensor& vector) const;

 private:
  kernels::AbnLayer layer_;
  at::Tensor index_;
};

}  // namespace palimpsest::ops
