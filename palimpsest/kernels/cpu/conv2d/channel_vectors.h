#pragma once

#include <cstdint>

/// How the kernels for convolutions in groups cut channels and pixels.
namespace palimpsest::kernels::cpu::conv2d {

/// Channels are taken one vector at a time. The last vector ends with the last channel and may overlap the
/// one before it: both compute the same values.
constexpr int64_t vectors_of(int64_t channels, int64_t lanes) {
  return (channels + lanes - 1) / lanes;
}
constexpr int64_t first_channel(int64_t vector, int64_t channels, int64_t lanes) {
  return vector * lanes < channels - lanes ? vector * lanes : channels - lanes;
}

/// The outputs behind one share of the weight's gradient: rows [top, bottom) of some images.
struct Segment {
  int64_t first_image, last_image, top, bottom;
};

}  // namespace palimpsest::kernels::cpu::conv2d
