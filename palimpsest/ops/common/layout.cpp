#include "palimpsest/ops/common/layout.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <vector>

namespace palimpsest::ops {

Shape3 shape3(const at::Tensor& t) {
  Shape3 shape{t.size(0), t.size(1), 1};
  for (int64_t d = 2; d < t.dim(); ++d) shape.s *= t.size(d);
  return shape;
}

at::Tensor empty_output(const at::Tensor& like) {
  return at::empty_strided(like.sizes(), output_strides(like.sizes(), like.strides()), like.options());
}

at::Tensor contiguous_in(Layout layout, const at::Tensor& t) {
  if (is_contiguous_in(t.sizes(), t.strides(), layout)) return t;
  return at::empty_strided(t.sizes(), contiguous_strides(t.sizes(), layout), t.options()).copy_(t);
}

at::Tensor in_layout_of(const at::Tensor& like, const at::Tensor& t) {
  if (is_contiguous_in(t.sizes(), t.strides(), preferred_layout(like.sizes(), like.strides()))) return t;
  return empty_output(like).copy_(t);
}

at::Tensor part_of_storage(const at::Tensor& of, at::ScalarType dtype, int64_t offset, at::IntArrayRef sizes,
                           at::IntArrayRef strides) {
  return at::empty({0}, of.options().dtype(dtype)).set_(of.storage(), offset, sizes, strides);
}

bool may_overlap_itself(const at::Tensor& t) {
  const auto sizes = t.sym_sizes();
  const auto strides = t.sym_strides();
  std::vector<size_t> order;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return false;
    if (sizes[d] != 1) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  c10::SymInt span = 1;  // elements from the first to the last address of the dimensions so far
  for (const size_t d : order) {
    if (strides[d] < span) return true;
    span = span + (sizes[d] - 1) * strides[d];
  }
  return false;
}

}  // namespace palimpsest::ops
