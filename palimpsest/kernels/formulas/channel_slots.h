#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/base/shape.h"

#include <cstdint>

namespace palimpsest::kernels {

/// The values of a channel over which the root mean square of a residual is taken: up to 4 images and 64
/// pixels of each, which is exact within 5 %. (Four times as many took 1 % of a ResNeXt-50 step.)
class ResidualSample {
 public:
  PALIMPSEST_HOST_DEVICE ResidualSample(const Shape3& shape, Layout layout)
      : shape_(shape),
        layout_(layout),
        images_(shape.n < kImages ? shape.n : kImages),
        pixels_(shape.s < kPixels ? shape.s : kPixels) {}

  PALIMPSEST_HOST_DEVICE int64_t values() const { return images_ * pixels_; }

  /// Returns the offset of value i of channel c.
  PALIMPSEST_HOST_DEVICE int64_t at(int64_t c, int64_t i) const {
    const int64_t n = i / pixels_, k = i % pixels_, apart = shape_.s / pixels_;
    // Moved within each share of the pixels, or all would lie in a few columns of an image. This way they lie
    // in 70 % of the columns that they could, or more, for sides from 7 to 224.
    const int64_t s = k * shape_.s / pixels_ + (3 * k + k / 4) % apart;
    return layout_ == Layout::kNCHW ? (n * shape_.c + c) * shape_.s + s : (n * shape_.s + s) * shape_.c + c;
  }

 private:
  static constexpr int64_t kImages = 4, kPixels = 64;

  Shape3 shape_;
  Layout layout_;
  int64_t images_, pixels_;
};

}  // namespace palimpsest::kernels
