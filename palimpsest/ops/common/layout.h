#pragma once

#include "palimpsest/base/shape.h"

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <cstdint>
#include <optional>

/// From libtorch's sizes and strides to the two dense layouts that the kernels know. Every function takes
/// numbers or symbolic ones (SymInt), so that the shapes that tracing sees are those that the kernels
/// produce.
namespace palimpsest::ops {

/// The dimensions of a rank-`rank` tensor from the innermost in memory outwards: NCHW is (rank-1, ..., 1, 0),
/// channels last (1, rank-1, ..., 2, 0).
inline c10::SmallVector<int64_t, 5> memory_order(int64_t rank, Layout layout) {
  c10::SmallVector<int64_t, 5> order;
  if (layout == Layout::kChannelsLast) order.push_back(1);
  for (int64_t d = rank - 1; d >= 0; --d)
    if (d != 1 || layout == Layout::kNCHW) order.push_back(d);
  return order;
}

/// Whether the tensor fills one block of memory in that order. Strides of dimensions of size 1 say nothing.
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

/// The layout in which the kernels read the tensor, nothing if it must be copied first. Where both fit, one
/// channel is NCHW and one pixel a channel is channels last: there the inner loops are long.
template <class Int>
std::optional<Layout> native_layout(c10::ArrayRef<Int> sizes, c10::ArrayRef<Int> strides) {
  const bool nchw = is_contiguous_in(sizes, strides, Layout::kNCHW);
  const bool channels_last = is_contiguous_in(sizes, strides, Layout::kChannelsLast);
  if (nchw && channels_last) return sizes[1] == 1 ? Layout::kNCHW : Layout::kChannelsLast;
  if (nchw) return Layout::kNCHW;
  if (channels_last) return Layout::kChannelsLast;
  return std::nullopt;
}

/// native_layout, else the layout that a dense copy takes: channels last where neighbouring channels are
/// neighbours.
template <class Int>
Layout preferred_layout(c10::ArrayRef<Int> sizes, c10::ArrayRef<Int> strides) {
  if (const auto layout = native_layout(sizes, strides)) return *layout;
  return strides[1] == 1 && sizes[1] != 1 ? Layout::kChannelsLast : Layout::kNCHW;
}

/// Strides of the output that goes with such an input: the same where it is dense, else those of the dense
/// copy.
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

/// Strides of a dense tensor of these sizes.
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

/// The type that parameters' gradients and the maths of such a tensor have: f64 for f64, else f32.
inline at::ScalarType accumulate_type(at::ScalarType storage) {
  return storage == at::kDouble ? at::kDouble : at::kFloat;
}

/// N, C and all spatial positions in one; S = 1 for a matrix.
Shape3 shape3(const at::Tensor& t);
/// An uninitialized dense tensor with output_strides of `like`.
at::Tensor empty_output(const at::Tensor& like);
/// `t` itself if it is dense in `layout`, else a copy that is.
at::Tensor contiguous_in(Layout layout, const at::Tensor& t);
/// `t` itself if it is dense in the layout that the kernels would read `like` in, else a copy that is.
at::Tensor in_layout_of(const at::Tensor& like, const at::Tensor& t);
/// A tensor in the storage of `of`, of another type, place or shape; `offset` in elements of `dtype`. No view
/// as autograd knows them: it has a version of its own.
at::Tensor part_of_storage(const at::Tensor& of, at::ScalarType dtype, int64_t offset, at::IntArrayRef sizes,
                           at::IntArrayRef strides);
/// False only where no two elements can share an address: after sorting by stride, each dimension steps over
/// all that the faster ones span. (An odd as_strided tensor may be called overlapping though it is not.)
bool may_overlap_itself(const at::Tensor& t);

}  // namespace palimpsest::ops
