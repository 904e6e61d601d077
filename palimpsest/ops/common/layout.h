#pragma once

#include "palimpsest/base/shape.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <optional>

/// Maps libtorch's sizes and strides to the two contiguous layouts of the kernels. The templates take numbers
/// or symbolic integers (SymInt), so that tracing sees the shapes that the kernels produce.
namespace palimpsest::ops {

/// Returns the dimensions of a tensor of rank `rank`, from the innermost in memory outwards: NCHW gives
/// (rank-1, ..., 1, 0), channels-last gives (1, rank-1, ..., 2, 0).
inline c10::SmallVector<int64_t, 5> memory_order(int64_t rank, Layout layout) {
  c10::SmallVector<int64_t, 5> order;
  if (layout == Layout::kChannelsLast) order.push_back(1);
  for (int64_t d = rank - 1; d >= 0; --d)
    if (d != 1 || layout == Layout::kNCHW) order.push_back(d);
  return order;
}

/// Returns whether the tensor fills one block of memory in that order. Strides of dimensions of size 1 are
/// ignored.
template <class Int>
bool is_contiguous_in(c10::ArrayRef<Int> sizes, c10::ArrayRef<Int> strides, Layout layout) {
  Int expected = 1;
  for (const int64_t d : memory_order(static_cast<int64_t>(sizes.size()), layout)) {
    if (sizes[d] == 0) return true;
    if (sizes[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected = expected * sizes[d];
  }
  return true;
}

/// Returns the layout in which the kernels read the tensor, or nothing if it must be copied first. If both
/// layouts fit, the result is the one with the longer inner loops: NCHW for one channel, channels-last for
/// one pixel per channel.
template <class Int>
std::optional<Layout> native_layout(c10::ArrayRef<Int> sizes, c10::ArrayRef<Int> strides) {
  const bool nchw = is_contiguous_in(sizes, strides, Layout::kNCHW);
  const bool channels_last = is_contiguous_in(sizes, strides, Layout::kChannelsLast);
  if (nchw && channels_last) return sizes[1] == 1 ? Layout::kNCHW : Layout::kChannelsLast;
  if (nchw) return Layout::kNCHW;
  if (channels_last) return Layout::kChannelsLast;
  return std::nullopt;
}

/// Returns native_layout, or else the layout of a contiguous copy: channels-last if neighbouring channels are
/// neighbours in memory.
template <class Int>
Layout preferred_layout(c10::ArrayRef<Int> sizes, c10::ArrayRef<Int> strides) {
  if (const auto layout = native_layout(sizes, strides)) return *layout;
  return strides[1] == 1 && sizes[1] != 1 ? Layout::kChannelsLast : Layout::kNCHW;
}

/// Returns the strides of the output for such an input: the input's strides if it has a native_layout, else
/// those of the contiguous copy.
template <class Int>
c10::SmallVector<Int, 5> output_strides(c10::ArrayRef<Int> sizes, c10::ArrayRef<Int> strides) {
  if (native_layout(sizes, strides)) return c10::SmallVector<Int, 5>(strides.begin(), strides.end());
  c10::SmallVector<Int, 5> result(sizes.size(), Int(1));
  Int stride = 1;
  for (const int64_t d : memory_order(static_cast<int64_t>(sizes.size()), preferred_layout(sizes, strides))) {
    result[d] = stride;
    stride = stride * sizes[d];
  }
  return result;
}

/// Returns the strides of a contiguous tensor of these sizes.
template <class Sizes>
c10::SmallVector<int64_t, 5> contiguous_strides(const Sizes& sizes, Layout layout) {
  c10::SmallVector<int64_t, 5> strides;
  strides.resize(sizes.size(), 1);
  int64_t stride = 1;
  for (const int64_t d : memory_order(static_cast<int64_t>(sizes.size()), layout)) {
    strides[d] = stride;
    stride *= sizes[d];
  }
  return strides;
}

/// Returns the accumulate type of a storage type: f64 for f64, else f32. Gradients of parameters have it.
inline at::ScalarType accumulate_type(at::ScalarType storage) {
  return storage == at::kDouble ? at::kDouble : at::kFloat;
}

/// Returns N, C and the product of the spatial dimensions; S = 1 for a matrix.
Shape3 shape3(const at::Tensor& t);
/// Returns an uninitialized tensor with the output_strides of `like`.
at::Tensor empty_output(const at::Tensor& like);
/// Returns `t` itself if it is contiguous in `layout`, else a contiguous copy.
at::Tensor contiguous_in(Layout layout, const at::Tensor& t);
/// Returns `t` itself if it is contiguous in the layout in which the kernels read `like`, else a copy that
/// is.
at::Tensor in_layout_of(const at::Tensor& like, const at::Tensor& t);
/// Returns a tensor in the storage of `of`, with another dtype, place or shape; `offset` counts elements of
/// `dtype`. For autograd it is no view: it has its own version.
at::Tensor part_of_storage(const at::Tensor& of, at::ScalarType dtype, int64_t offset, at::IntArrayRef sizes,
                           at::IntArrayRef strides);
/// Returns false only if no two elements can share an address: in the order of strides, each dimension steps
/// over the whole span of the faster dimensions. (For some as_strided tensors the result is true although
/// they do not overlap.)
bool may_overlap_itself(const at::Tensor& t);
/// Returns false only if no element of `a` shares memory with an element of `b`. Views of equal sizes and
/// strides get an exact answer; for others, ranges of memory that cross are reason enough.
bool may_share_memory(const at::Tensor& a, const at::Tensor& b);

}  // namespace palimpsest::ops
