#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/upsampled_loss.h"

#include <cstdint>

namespace palimpsest::kernels {

/// Where the pixels of an image read along one dimension (upsampled_loss.h).
struct Source {
  int64_t first = 0;  ///< the top row (left column)
  double weight = 0;  ///< of the next one; 0 at the last
};

PALIMPSEST_HOST_DEVICE Source source_of(int64_t pixel, int64_t in, int64_t out, bool align_corners) {
  double at = 0;
  if (align_corners) {
    if (out > 1) at = static_cast<double>(pixel) * static_cast<double>(in - 1) / static_cast<double>(out - 1);
  } else {
    at = (static_cast<double>(pixel) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5;
    if (at < 0) at = 0;
  }
  auto first = static_cast<int64_t>(at);
  if (first > in - 1) first = in - 1;
  return {first, first + 1 < in ? at - static_cast<double>(first) : 0};
}

/// Returns the place of a value of the small map.
PALIMPSEST_HOST_DEVICE int64_t map_index(const UpsampledProblem& p, int64_t n, int64_t c, int64_t h,
                                         int64_t w) {
  return p.layout == Layout::kNCHW ? ((n * p.c + c) * p.in.h + h) * p.in.w + w
                                   : ((n * p.in.h + h) * p.in.w + w) * p.c + c;
}

PALIMPSEST_HOST_DEVICE int64_t target_at(const CrossEntropyTargets& targets, int64_t i) {
  return targets.bytes ? static_cast<const uint8_t*>(targets.ids)[i]
                       : static_cast<const int64_t*>(targets.ids)[i];
}

}  // namespace palimpsest::kernels
