#pragma once

// Only for units of one instruction set, as simd/vector.h. The gradient of the weight of convolutions in
// narrow groups (grouped_kernels.h).

#include "palimpsest/kernels/cpu/conv2d/grouped_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/grouped_lanes.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::conv2d::first_channel;
using cpu::conv2d::GroupedWeightGradient;
using cpu::conv2d::Segment;

namespace {

// Inputs of the group whose sums, nine each, are in registers at the same time.
constexpr int kInputsAtOnce = kManyRegisters ? 2 : 1;

constexpr int64_t at_least(int64_t a, int64_t b) {
  return a > b ? a : b;
}
constexpr int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// A rectangle of outputs in each of some images, and the inputs that these outputs read; ends are exclusive.
struct Patch {
  int64_t image, images;
  int64_t top, bottom, left, right;  // of the output
  int64_t in_top, in_bottom, in_left, in_right;
};

// Zeros to the left and right of a packed row, so that no column is a special case. They take part in
// products; if that shows, because a NaN or an infinity met them, the patch is computed again without them
// (add_vector).
template <int kStride>
constexpr int64_t kInMargin = kStride - 1;
template <int kStride>
constexpr int64_t kMargin = 2 / kStride;

// Both fit into a first-level cache of 48 KiB. A stride of 2 needs the most inputs.
constexpr int64_t kPatchPixels = 288, kPatchInPixels = 480;

/// One vector of channels of a patch, packed.
struct PackedPatch {
  // (images, in rows, margin + in columns + margin, lanes or group)
  alignas(64) float x[kPatchInPixels * 16];
  // (images, rows, margin + columns + margin, lanes)
  alignas(64) float dy[kPatchPixels * kLanes];
};

/// Inputs kInput and following of the group, spread.
template <int kGroup, int kInput>
PALIMPSEST_HOST_DEVICE void load_inputs(const float* pixel, F32* x) {
  unrolled<0, kInputsAtOnce>([&](auto u) __attribute__((always_inline)) {
    if constexpr (kFillsVectors<kGroup>)
      x[u] = broadcast_load(pixel + kInput + u);
    else
      x[u] = spread<kGroup, kInput + u>(load<F32>(pixel));
    keep_in_register(x[u]);
  });
}

/// One row of inputs, and the rows of dy that read it.
struct RowPair {
  const float* x;      // from column q * stride - padding on, for the first q
  const float* dy[3];  // from column q on, by ky; null if the patch has no such row
  int64_t first, last;
};

/// Adds one row of inputs. Input column q * stride - padding + phase meets output q - shift by the tap
/// kx = phase + stride * shift. Bit ky of kRows, if kRows is not 0, says that dy[ky] is not null.
template <int kStride, int kGroup, int kInput, int kRows, bool kExact>
PALIMPSEST_HOST_DEVICE void add_row(const RowPair& row, const Patch& patch, int64_t padding,
                                    F32 (&sum)[9][kInputsAtOnce]) {
  constexpr int64_t kPitch = kFillsVectors<kGroup> ? kGroup : kLanes;
  const float *x = row.x, *dy0 = row.dy[0], *dy1 = row.dy[1], *dy2 = row.dy[2];
  int64_t offset = 0;
  for (int64_t q = row.first; q < row.last; ++q, x += kStride * kPitch, offset += kLanes)
    unrolled<0, kStride>([&](auto phase) __attribute__((always_inline)) {
      if constexpr (kExact) {
        const int64_t column = q * kStride - padding + phase;
        if (column < patch.in_left || column >= patch.in_right) return;
      }
      F32 inputs[kInputsAtOnce];
      load_inputs<kGroup, kInput>(x + phase * kPitch, inputs);
      unrolled<0, 3>([&](auto ky) __attribute__((always_inline)) {
        const float* const from = ky == 0 ? dy0 : ky == 1 ? dy1 : dy2;
        if constexpr (kRows == 0) {
          if (!from) return;
        } else if constexpr ((kRows >> ky & 1) == 0) {
          return;
        }
        unrolled<0, (2 - phase) / kStride + 1>([&](auto shift) __attribute__((always_inline)) {
          if constexpr (kExact)
            if (q - shift < patch.left || q - shift >= patch.right) return;
          F32 dy = load<F32>(from + offset - shift * kLanes);
          keep_in_register(dy);
          unrolled<0, kInputsAtOnce>([&](auto u) __attribute__((always_inline)) {
            sum[ky * 3 + phase + kStride * shift][u] += inputs[u] * dy;
          });
        });
      });
    });
}

/// Writes to sums (i, ky, kx, lanes) the share of the patch, whose packed x begins at `packed_x`, for inputs
/// kInput and following of the group.
template <int kStride, int kGroup, int kInput, bool kExact>
__attribute__((noinline)) void add_patch(const GroupedWeightGradient& g, const Patch& patch,
                                         const float* packed_x, const float* packed_dy, float* sums) {
  constexpr int64_t kPitch = kFillsVectors<kGroup> ? kGroup : kLanes;
  F32 sum[9][kInputsAtOnce] = {};
  RowPair row;
  row.first = (patch.in_left + g.padding.w) / kStride;
  row.last = patch.in_left < patch.in_right ? (patch.in_right - 1 + g.padding.w) / kStride + 1 : row.first;
  const int64_t height = patch.bottom - patch.top;
  const int64_t row_floats = (patch.right - patch.left + 2 * kMargin<kStride>)*kLanes;
  const int64_t in_row_floats = (patch.in_right - patch.in_left + 2 * kInMargin<kStride>)*kPitch;
  row.x = packed_x + (kInMargin<kStride> + row.first * kStride - g.padding.w - patch.in_left) * kPitch;
  const float* dy = packed_dy + (kMargin<kStride> + row.first - patch.left) * kLanes;
  for (int64_t image = 0; image < patch.images; ++image, dy += height * row_floats)
    for (int64_t y = patch.in_top; y < patch.in_bottom; ++y, row.x += in_row_floats) {
      int rows = 0;
      for (int ky = 0; ky < 3; ++ky) {
        const int64_t times_stride = y + g.padding.h - ky - patch.top * kStride;
        const int64_t at = times_stride / kStride;
        const bool there = times_stride >= 0 && at < height && times_stride % kStride == 0;
        row.dy[ky] = there ? dy + at * row_floats : nullptr;
        rows |= static_cast<int>(there) << ky;
      }
      if (!kExact && kStride == 1 && rows == 7)
        add_row<kStride, kGroup, kInput, 7, false>(row, patch, g.padding.w, sum);
      else if (!kExact && kStride == 2 && rows == 5)
        add_row<kStride, kGroup, kInput, 5, false>(row, patch, g.padding.w, sum);
      else if (!kExact && kStride == 2 && rows == 2)
        add_row<kStride, kGroup, kInput, 2, false>(row, patch, g.padding.w, sum);
      else
        add_row<kStride, kGroup, kInput, 0, kExact>(row, patch, g.padding.w, sum);
    }
  unrolled<0, kInputsAtOnce>([&](auto u) __attribute__((always_inline)) {
    unrolled<0, 9>([&](auto tap) __attribute__((always_inline)) {
      store(sums + ((kInput + u) * 9 + tap) * kLanes, sum[tap][u]);
    });
  });
}

/// A rectangle of pixels in each of some images of a channels-last tensor, at its first channel.
struct Window {
  const float* corner;
  int64_t images, rows, columns;
  int64_t pixel_pitch, row_pitch, image_pitch;
};

/// The vectors that a sweep visits one by one.
struct VectorRange {
  int64_t first, last;
};

/// Packs kValues values from channel c on of every pixel of `window`, with kZeros pixels of zeros before and
/// after each row. Each call also prefetches its share of the next window into the second-level cache (see
/// sweep_vector).
template <int kValues, int64_t kZeros>
PALIMPSEST_HOST_DEVICE void pack(const Window& window, int64_t c, const Window& next, VectorRange range,
                                 int64_t vector, float* to) {
  const int64_t lines = range.last - range.first, first_line = (vector - range.first) * window.columns;
  const int64_t first_pixel = first_line / lines;
  const auto add_zeros = [&]() __attribute__((always_inline)) {
    __builtin_memset(to, 0, kZeros * kValues * sizeof(float));
    to += kZeros * kValues;
  };
  for (int64_t image = 0; image < window.images; ++image)
    for (int64_t row = 0; row < window.rows; ++row) {
      const int64_t offset = image * window.image_pitch + row * window.row_pitch;
      const float* from = window.corner + offset + c;
      const float* ahead = next.corner + offset + range.first * kLanes + first_pixel * window.pixel_pitch;
      int64_t line = first_line - first_pixel * lines;
      add_zeros();
      for (int64_t column = 0; column < window.columns; ++column, to += kValues, from += window.pixel_pitch) {
        __builtin_memcpy(to, from, kValues * sizeof(float));
        fetch_ahead(ahead + line * kLanes);
        if (++line == lines) line = 0, ahead += window.pixel_pitch;
      }
      add_zeros();
    }
}

PALIMPSEST_HOST_DEVICE Window window_of(const float* tensor, Pair2 size, int64_t channels, int64_t image,
                                        int64_t images, int64_t top, int64_t bottom, int64_t left,
                                        int64_t right) {
  return {tensor + ((image * size.h + top) * size.w + left) * channels,
          images,
          bottom - top,
          right - left,
          channels,
          size.w * channels,
          size.h * size.w * channels};
}
PALIMPSEST_HOST_DEVICE Window outputs_of(const GroupedWeightGradient& g, const Patch& p) {
  return window_of(g.dy, g.out, g.channels, p.image, p.images, p.top, p.bottom, p.left, p.right);
}
PALIMPSEST_HOST_DEVICE Window inputs_of(const GroupedWeightGradient& g, const Patch& p) {
  return window_of(g.x, g.in, g.channels, p.image, p.images, p.in_top, p.in_bottom, p.in_left, p.in_right);
}

/// Returns whether a sum is NaN or infinite.
PALIMPSEST_HOST_DEVICE bool any_not_finite(const float* sums, int64_t count) {
  F32 zero{};  // NaN where one was not finite
  for (int64_t k = 0; k < count; k += kLanes) zero += load<F32>(sums + k) - load<F32>(sums + k);
  bool any = false;
  for (int64_t lane = 0; lane < kLanes; ++lane) any |= zero[lane] != 0;
  return any;
}

/// Adds the share of the patch for all inputs of the group.
template <int kStride, int kGroup, bool kExact>
PALIMPSEST_HOST_DEVICE void add_inputs(const GroupedWeightGradient& g, const Patch& patch,
                                       const PackedPatch& packed, float* sums) {
  if constexpr (kFillsVectors<
                    kGroup>)  // one copy of the code serves all inputs, which are neighbouring values
    for (int64_t i = 0; i < kGroup; i += kInputsAtOnce)
      add_patch<kStride, kGroup, 0, kExact>(g, patch, packed.x + i, packed.dy, sums + i * 9 * kLanes);
  else
    unrolled<0, kGroup / kInputsAtOnce>([&](auto i) __attribute__((always_inline)) {
      add_patch<kStride, kGroup, i * kInputsAtOnce, kExact>(g, patch, packed.x, packed.dy, sums);
    });
}

/// Adds the share of one vector of a packed patch to sums (i, ky, kx, lanes).
template <int kStride, int kGroup>
PALIMPSEST_HOST_DEVICE void add_vector(const GroupedWeightGradient& g, const Patch& patch,
                                       const PackedPatch& packed, float* sums) {
  constexpr int64_t kSums = 9 * kGroup * kLanes;
  alignas(64) float of_patch[kSums];
  add_inputs<kStride, kGroup, false>(g, patch, packed, of_patch);
  if (any_not_finite(of_patch, kSums)) add_inputs<kStride, kGroup, true>(g, patch, packed, of_patch);
  for (int64_t k = 0; k < kSums; k += kLanes) store(sums + k, load<F32>(sums + k) + load<F32>(of_patch + k));
}

template <int kStride, int kGroup>
void add_vectors(const GroupedWeightGradient& g, const Patch& patch, const Patch& next, VectorRange range,
                 float* sums) {
  PackedPatch packed;
  constexpr int kValues = kFillsVectors<kGroup> ? kGroup : kLanes;
  const Window dy = outputs_of(g, patch), next_dy = outputs_of(g, next);
  const Window x = inputs_of(g, patch), next_x = inputs_of(g, next);
  for (int64_t vector = range.first; vector < range.last; ++vector, sums += 9 * kGroup * kLanes) {
    const int64_t c = first_channel(vector, g.channels, kLanes);
    pack<kLanes, kMargin<kStride>>(dy, c, next_dy, range, vector, packed.dy);
    pack<kValues, kInMargin<kStride>>(x, kFillsVectors<kGroup> ? c / kGroup * kGroup : c, next_x, range,
                                      vector, packed.x);
    add_vector<kStride, kGroup>(g, patch, packed, sums);
  }
}

/// The cut of a segment into patches.
template <int kStride>
class Patches {
 public:
  PALIMPSEST_HOST_DEVICE Patches(const GroupedWeightGradient& g, const Segment& segment)
      : gradient_(g), segment_(segment) {
    // Patches that are about square read the fewest inputs beyond their outputs.
    columns_ = at_most(g.out.w, kStride == 1 ? 28 : 14);
    const int64_t width = columns_ + 2 * kMargin<kStride>;
    const int64_t in_width = (columns_ - 1) * kStride + 3 + 2 * kInMargin<kStride>;
    const int64_t height = segment.bottom - segment.top,
                  by_inputs = (kPatchInPixels / in_width - 3) / kStride + 1;
    rows_ = at_most(height, at_most(kPatchPixels / width, by_inputs));
    const int64_t in_rows = (rows_ - 1) * kStride + 3;
    images_ = 1;
    if (columns_ == g.out.w && rows_ == height)
      images_ = at_most(kPatchPixels / (rows_ * width), kPatchInPixels / (in_rows * in_width));
    across_ = (g.out.w + columns_ - 1) / columns_;
    down_ = (height + rows_ - 1) / rows_;
    count_ = (segment.last_image - segment.first_image + images_ - 1) / images_ * down_ * across_;
  }

  PALIMPSEST_HOST_DEVICE int64_t count() const { return count_; }
  PALIMPSEST_HOST_DEVICE Patch operator[](int64_t i) const {
    Patch p;
    p.image = segment_.first_image + i / (down_ * across_) * images_;
    p.images = at_most(images_, segment_.last_image - p.image);
    p.top = segment_.top + i / across_ % down_ * rows_, p.bottom = at_most(p.top + rows_, segment_.bottom);
    p.left = i % across_ * columns_, p.right = at_most(p.left + columns_, gradient_.out.w);
    p.in_top = at_least(0, p.top * kStride - gradient_.padding.h);
    p.in_bottom =
        at_least(p.in_top, at_most(gradient_.in.h, (p.bottom - 1) * kStride - gradient_.padding.h + 3));
    p.in_left = at_least(0, p.left * kStride - gradient_.padding.w);
    p.in_right =
        at_least(p.in_left, at_most(gradient_.in.w, (p.right - 1) * kStride - gradient_.padding.w + 3));
    return p;
  }

 private:
  const GroupedWeightGradient& gradient_;
  const Segment& segment_;
  int64_t images_, rows_, columns_, across_, down_, count_;
};

template <int kStride, int kGroup>
void add_segment(const GroupedWeightGradient& g, const Segment& segment, const Segment& next,
                 VectorRange range, float* sums) {
  const Patches<kStride> patches(g, segment), patches_after(g, next);
  for (int64_t i = 0; i < patches.count(); ++i)
    add_vectors<kStride, kGroup>(g, patches[i], i + 1 < patches.count() ? patches[i + 1] : patches_after[0],
                                 range, sums);
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
