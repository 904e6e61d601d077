#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/tracing.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace palimpsest::ops {
namespace {

/// The memory of a tensor, in bytes from any fixed address.
struct Range {
  c10::SymInt begin, end;
};

/// Returns the addresses from the first to the last element of `t`, whose storage begins at `base`.
Range range_of(const at::Tensor& t, int64_t base) {
  const auto bytes = static_cast<int64_t>(t.element_size());
  const auto sizes = t.sym_sizes(), strides = t.sym_strides();
  c10::SymInt last = t.sym_storage_offset();
  for (size_t d = 0; d < sizes.size(); ++d) last = last + (sizes[d] - 1) * strides[d];
  return {base + t.sym_storage_offset() * bytes, base + (last + 1) * bytes};
}

/// The dimensions of two tensors with equal sizes and strides.
using Dimensions = std::vector<std::pair<c10::SymInt, c10::SymInt>>;  // stride, size; falling strides

/// Returns whether `distance` is a sum of steps, fewer than the size along each dimension. Each stride is
/// larger than all steps of the later dimensions together.
bool is_reachable(const c10::SymInt& distance, const Dimensions& dimensions, size_t first) {
  if (first == dimensions.size()) return distance == 0;
  const auto& [stride, size] = dimensions[first];
  const c10::SymInt nearest = distance / stride;
  for (const int64_t more : {0, -1, 1}) {
    const c10::SymInt steps = nearest + more;
    if (steps < size && steps > -size && is_reachable(distance - steps * stride, dimensions, first + 1))
      return true;
  }
  return false;
}

}  // namespace

Shape3 shape3(const at::Tensor& t) {
  Shape3 shape{t.size(0), t.size(1), 1};
  for (int64_t d = 2; d < t.dim(); ++d) shape.s *= t.size(d);
  return shape;
}

at::Tensor empty_output(const at::Tensor& like) {
  return at::empty_strided(like.sizes(), output_strides(like.sizes(), like.strides()), like.options());
}

at::Tensor contiguous_in(Layout layout, const at::Tensor& t) {
  if (is_contiguous_in(t.sizes(), t.strides(), layout) && !t.is_neg()) return t;
  return at::empty_strided(t.sizes(), contiguous_strides(t.sizes(), layout), t.options()).copy_(t);
}

at::Tensor in_layout_of(const at::Tensor& like, const at::Tensor& t) {
  const Layout layout = preferred_layout(like.sizes(), like.strides());
  if (is_contiguous_in(t.sizes(), t.strides(), layout) && !t.is_neg()) return t;
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

bool may_share_memory(const at::Tensor& a, const at::Tensor& b) {
  if (a.sym_numel() == 0 || b.sym_numel() == 0) return false;
  if (a.is_same(b)) return true;
  if (!a.has_storage() || !b.has_storage()) return false;
  const bool one_storage = a.is_alias_of(b);
  // Two storages may hold the same memory (from_blob, from_numpy). Traced tensors have no addresses.
  if (!one_storage && (a.device() != b.device() || is_traced(a) || is_traced(b))) return false;
  const auto base = [&](const at::Tensor& t) {
    return one_storage ? 0 : static_cast<int64_t>(reinterpret_cast<intptr_t>(t.storage().data()));
  };
  if (!one_storage && (base(a) == 0 || base(b) == 0)) return false;
  const Range of_a = range_of(a, base(a)), of_b = range_of(b, base(b));
  if (of_a.end <= of_b.begin || of_b.end <= of_a.begin) return false;
  if (a.scalar_type() != b.scalar_type() || a.sym_sizes() != b.sym_sizes() ||
      a.sym_strides() != b.sym_strides() || may_overlap_itself(a))
    return true;
  const auto bytes = static_cast<int64_t>(a.element_size());
  const c10::SymInt distance = of_b.begin - of_a.begin;
  if (distance % bytes != 0) return true;
  Dimensions dimensions;
  const auto sizes = a.sym_sizes(), strides = a.sym_strides();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1) dimensions.emplace_back(strides[d], sizes[d]);
  std::sort(dimensions.begin(), dimensions.end(),
            [](const auto& left, const auto& right) { return left.first > right.first; });
  return is_reachable(distance / bytes, dimensions, 0);
}

}  // namespace palimpsest::ops
