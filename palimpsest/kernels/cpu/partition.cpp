#include "palimpsest/kernels/cpu/partition.h"

#include <algorithm>

namespace palimpsest::kernels::cpu {
namespace {

int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

Partition::Partition(Shape3 shape, Layout layout) : shape_(shape) {
  // One pixel per image, or one channel: both layouts are the same bytes, and only one of them has long rows.
  planes_ = shape.c == 1 || (layout == Layout::kNCHW && shape.s > 1);
  const int64_t values = shape.per_channel();
  if (planes_) {
    panel_width_ = 1;
    panels_ = shape.c;
    segments_ = std::clamp<int64_t>(values / 65536, 1, 64);
    if (segments_ > shape.n) {
      pixel_parts_ = std::min(ceil_divide(segments_, shape.n), shape.s);
      segments_ = shape.n * pixel_parts_;
    }
  } else {
    panel_width_ = std::min(shape.c, kMaxColumns);
    panels_ = ceil_divide(shape.c, panel_width_);
    segments_ = std::clamp<int64_t>(values / 128, 1, 64);
  }
}

int64_t Partition::values(int64_t segment) const {
  return piece(0, segment).values;
}

Piece Partition::piece(int64_t panel, int64_t segment) const {
  const auto [n, c, s] = shape_;
  if (planes_) {
    const int64_t groups = segments_ / pixel_parts_, group = segment / pixel_parts_,
                  part = segment % pixel_parts_;
    const int64_t n0 = n * group / groups, n1 = n * (group + 1) / groups;
    const int64_t s0 = s * part / pixel_parts_, s1 = s * (part + 1) / pixel_parts_;
    return {{n1 - n0, c * s, s1 - s0}, (n0 * c + panel) * s + s0, panel, 1, (n1 - n0) * (s1 - s0)};
  }
  const int64_t rows = n * s;
  const int64_t r0 = rows * segment / segments_, r1 = rows * (segment + 1) / segments_;
  const int64_t c0 = panel * panel_width_, c1 = std::min(c, c0 + panel_width_);
  return {{r1 - r0, c, c1 - c0}, r0 * c + c0, c0, c1 - c0, r1 - r0};
}

}  // namespace palimpsest::kernels::cpu
