#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/abn.h"
#include "palimpsest/ops/abn/functional.h"

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace palimpsest::ops {

/// The degenerate channels of one layer and where their normalized x is kept: in a side buffer of a channel
/// in 32 (at least one), or, if there are more of them (a weight initialized to zero), for the whole layer.
struct SideChannels {
  int64_t count = 0;  ///< all, if whole
  bool whole = false;
  at::Tensor index;  ///< (count) i64 on the layer's device: which ones, unless whole

  bool any() const { return count > 0; }
};

/// For a forward pass over `x`. On a device that the host runs ahead of by what it knows without waiting
/// (ops/invertibility/predictor.h).
SideChannels choose_side_channels(const AbnSettings& settings, const at::Tensor& x);

/// What forward keeps of them for backward: bytes (u8), shape (0) in any case (AbnStatistics::side), behind
/// which lie the values in the layer's layout, and unless whole, at the next multiple of 8, the index, and
/// one byte more: by an odd number of bytes backward knows them from a whole layer's.
class SideBuffer {
 public:
  /// Without any: nothing.
  static at::Tensor hidden(const SideChannels& side, const at::Tensor& x);
  /// The bytes of `hidden`, in sight: whoever copies saved tensors would lose what has no shape.
  static at::Tensor revealed(const at::Tensor& hidden);

  /// Of either, for a layer over tensors that lie as `like`.
  SideBuffer(const at::Tensor& bytes, const at::Tensor& like);

  const SideChannels& channels() const { return channels_; }
  /// Of shape (N, count, ...), or like's if whole, to be written and read.
  const at::Tensor& values() const { return values_; }

 private:
  SideChannels channels_;
  at::Tensor values_;
};

/// For a backward pass: tells it to what chooses the channels of the next forward (ops/invertibility/predictor.h).
void note_backward(const AbnSettings& settings, const at::Tensor& kept);

/// Raises if a forward pass that left nothing found a degenerate channel: then what it left was lost.
void check_nothing_was_left(const AbnSettings& settings, const at::Tensor& kept);

/// The parts of full-size tensors and of (C) vectors that belong to those channels, dense in one layout, so
/// that the kernels can work on them as on a layer of its own.
class SideLayer {
 public:
  SideLayer(const SideChannels& side, const kernels::AbnProblem& layer);

  kernels::AbnProblem layer() const { return layer_; }
  at::Tensor gather(const at::Tensor& full) const;
  /// Of (C) vectors; undefined stays undefined.
  at::Tensor gather_vector(const at::Tensor& vector) const;
  void scatter(const at::Tensor& part, const at::Tensor& full) const;
  void scatter_vector(const at::Tensor& part, const at::Tensor& vector) const;

 private:
  kernels::AbnProblem layer_;
  at::Tensor index_;
};

}  // namespace palimpsest::ops
