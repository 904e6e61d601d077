#pragma once

// As vector.h: only for units that are compiled once per instruction set. The gradient of the weight of
// convolutions in narrow groups (grouped_conv2d_kernels.h).

#include "palimpsest/kernels/cpu/grouped_conv2d_kernels.h"
#include "palimpsest/kernels/cpu/grouped_conv2d_lanes.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {
namespace {

// Inputs of the group whose nine sums each are in registers at a time.
constexpr int kInputsAtOnce = kManyRegisters ? 2 : 1;

constexpr int64_t at_least(int64_t a, int64_t b) {
  return a > b ? a : b;
}
constexpr int64_t at_most(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/// A rectangle of outputs in each of some images, and the inputs that they read; [begin, end) everywhere.
struct Patch {
  int64_t image, images;
  int64_t top, bottom, left, right;  // of the output
  int64_t in_top, in_bottom, in_left, in_right;

  int64_t width() const { return right - left; }
  int64_t in_width() const { return in_right - in_left; }
  int64_t pixels() const { return (bottom - top) * width(); }
  int64_t in_pixels() const { return (in_bottom - in_top) * in_width(); }
};

// So many pixels that both fit into a first-level cache of 48 KiB.
constexpr int64_t kPatchPixels = 288, kPatchInPixels = 448;

/// One vector of channels of a patch, close together.
struct PackedPatch {
  alignas(64) float x[kPatchInPixels * 16];     // (images, in rows, in columns, lanes or inputs of the group)
  alignas(64) float dy[kPatchPixels * kLanes];  // (images, rows, columns, lanes)
};

/// x from input kInput of the group on, spread, for kInputsAtOnce inputs.
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

/// sums (i, ky, kx, lanes) += what the patch adds for inputs kInput and following of the group.
template <int kStride, int kGroup, int kInput>
__attribute__((noinline)) void add_patch(const GroupedWeightGradient& g, const Patch& patch,
                                         const PackedPatch& packed, float* sums) {
  constexpr int64_t kPitch = kFillsVectors<kGroup> ? kGroup : kLanes;
  constexpr int kLastShift = 2 / kStride;  // output columns to the left of q that read the inputs of column q
  F32 sum[9][kInputsAtOnce] = {};
  // Column q: inputs q * stride - padding + phase, whose tap kx = phase + stride * shift is of output q -
  // shift.
  const int64_t first = patch.left, last = patch.right + kLastShift;
  const int64_t whole_first = at_most(
      last, at_least(first + kLastShift, (at_least(0, g.padding.w + patch.in_left) + kStride - 1) / kStride));
  const int64_t whole_last =
      at_least(whole_first, at_most(patch.right, (patch.in_right + g.padding.w) / kStride));
  for (int64_t image = 0; image < patch.images; ++image)
    for (int64_t y = patch.in_top; y < patch.in_bottom; ++y) {
      const float* const x = packed.x + (image * patch.in_pixels() + (y - patch.in_top) * patch.in_width() -
                                         g.padding.w - patch.in_left) *
                                            kPitch;
      const float* rows[3];  // of dy, by ky; null where the patch has none
      for (int64_t ky = 0; ky < 3; ++ky) {
        const int64_t row = (y + g.padding.h - ky) / kStride;
        const bool none = (y + g.padding.h - ky) % kStride != 0 || row < patch.top || row >= patch.bottom;
        rows[ky] =
            none ? nullptr
                 : packed.dy +
                       (image * patch.pixels() + (row - patch.top) * patch.width() - patch.left) * kLanes;
      }
      const auto add_column = [&](int64_t q, auto inside) __attribute__((always_inline)) {
        unrolled<0, kStride>([&](auto phase) __attribute__((always_inline)) {
          if constexpr (!inside) {
            const int64_t column = q * kStride - g.padding.w + phase;
            if (column < patch.in_left || column >= patch.in_right) return;
          }
          F32 inputs[kInputsAtOnce];
          load_inputs<kGroup, kInput>(x + (q * kStride + phase) * kPitch, inputs);
          unrolled<0, 3>([&](auto ky) __attribute__((always_inline)) {
            if (!rows[ky]) return;
            unrolled<0, (2 - phase) / kStride + 1>([&](auto shift) __attribute__((always_inline)) {
              if constexpr (!inside)
                if (q - shift < patch.left || q - shift >= patch.right) return;
              F32 dy = load<F32>(rows[ky] + (q - shift) * kLanes);
              keep_in_register(dy);
              unrolled<0, kInputsAtOnce>([&](auto u) __attribute__((always_inline)) {
                sum[ky * 3 + phase + kStride * shift][u] += inputs[u] * dy;
              });
            });
          });
        });
      };
      for (int64_t q = first; q < whole_first; ++q) add_column(q, Int<0>{});
      for (int64_t q = whole_first; q < whole_last; ++q) add_column(q, Int<1>{});
      for (int64_t q = whole_last; q < last; ++q) add_column(q, Int<0>{});
    }
  unrolled<0, kInputsAtOnce>([&](auto u) __attribute__((always_inline)) {
    unrolled<0, 9>([&](auto tap) __attribute__((always_inline)) {
      float* const to = sums + ((kInput + u) * 9 + tap) * kLanes;
      store(to, load<F32>(to) + sum[tap][u]);
    });
  });
}

/// A rectangle of pixels in each of some images of a channels-last tensor, at its first channel.
struct Window {
  const float* corner;
  int64_t images, rows, columns;
  int64_t pixel_pitch, row_pitch, image_pitch;
};

/// The vectors that a sweep takes one by one.
struct VectorRange {
  int64_t first, last;
};

/// kValues values from channel c on of every pixel of `window`, close together. On the way the next window
/// comes into the second-level cache, a vector's share a call (see sweep_vector).
template <int kValues>
PALIMPSEST_HOST_DEVICE void pack(const Window& window, int64_t c, const Window& next, VectorRange range,
                                 int64_t vector, float* to) {
  const int64_t lines = range.last - range.first, first_line = (vector - range.first) * window.columns;
  for (int64_t image = 0; image < window.images; ++image)
    for (int64_t row = 0; row < window.rows; ++row) {
      const int64_t offset = image * window.image_pitch + row * window.row_pitch;
      const float* from = window.corner + offset + c;
      const float* ahead =
          next.corner + offset + range.first * kLanes + first_line / lines * window.pixel_pitch;
      int64_t line = first_line % lines;
      for (int64_t column = 0; column < window.columns; ++column, to += kValues, from += window.pixel_pitch) {
        __builtin_memcpy(to, from, kValues * sizeof(float));
        __builtin_prefetch(ahead + line * kLanes, 0, 2);
        if (++line == lines) line = 0, ahead += window.pixel_pitch;
      }
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

template <int kStride, int kGroup>
void add_vectors(const GroupedWeightGradient& g, const Patch& patch, const Patch& next, VectorRange range,
                 float* sums) {
  PackedPatch packed;
  for (int64_t vector = range.first; vector < range.last; ++vector, sums += 9 * kGroup * kLanes) {
    const int64_t c = first_channel(vector, g.channels, kLanes);
    pack<kLanes>(outputs_of(g, patch), c, outputs_of(g, next), range, vector, packed.dy);
    if constexpr (kFillsVectors<kGroup>)
      pack<kGroup>(inputs_of(g, patch), c / kGroup * kGroup, inputs_of(g, next), range, vector, packed.x);
    else
      pack<kLanes>(inputs_of(g, patch), c, inputs_of(g, next), range, vector, packed.x);
    unrolled<0, kGroup / kInputsAtOnce>([&](auto i) __attribute__((always_inline)) {
      add_patch<kStride, kGroup, i * kInputsAtOnce>(g, patch, packed, sums);
    });
  }
}

/// How a segment is cut into patches.
class Patches {
 public:
  PALIMPSEST_HOST_DEVICE Patches(const GroupedWeightGradient& g, const GroupedSegment& s) : g_(g), s_(s) {
    // Of about square shape they read the least beyond their outputs.
    columns_ = at_most(g.out.w, g.stride == 1 ? 28 : 14);
    const int64_t in_columns = (columns_ - 1) * g.stride + 3;
    const int64_t height = s.bottom - s.top, by_inputs = (kPatchInPixels / in_columns - 3) / g.stride + 1;
    rows_ = at_most(height, at_most(kPatchPixels / columns_, by_inputs));
    const int64_t in_rows = (rows_ - 1) * g.stride + 3;
    images_ = 1;
    if (columns_ == g.out.w && rows_ == height)
      images_ = at_most(kPatchPixels / (rows_ * columns_), kPatchInPixels / (in_rows * in_columns));
    across_ = (g.out.w + columns_ - 1) / columns_;
    down_ = (height + rows_ - 1) / rows_;
    count_ = (s.last_image - s.first_image + images_ - 1) / images_ * down_ * across_;
  }

  PALIMPSEST_HOST_DEVICE int64_t count() const { return count_; }
  PALIMPSEST_HOST_DEVICE Patch operator[](int64_t i) const {
    Patch p;
    p.image = s_.first_image + i / (down_ * across_) * images_;
    p.images = at_most(images_, s_.last_image - p.image);
    p.top = s_.top + i / across_ % down_ * rows_, p.bottom = at_most(p.top + rows_, s_.bottom);
    p.left = i % across_ * columns_, p.right = at_most(p.left + columns_, g_.out.w);
    p.in_top = at_least(0, p.top * g_.stride - g_.padding.h);
    p.in_bottom = at_least(p.in_top, at_most(g_.in.h, (p.bottom - 1) * g_.stride - g_.padding.h + 3));
    p.in_left = at_least(0, p.left * g_.stride - g_.padding.w);
    p.in_right = at_least(p.in_left, at_most(g_.in.w, (p.right - 1) * g_.stride - g_.padding.w + 3));
    return p;
  }

 private:
  const GroupedWeightGradient& g_;
  const GroupedSegment& s_;
  int64_t images_, rows_, columns_, across_, down_, count_;
};

template <int kStride, int kGroup>
void add_segment(const GroupedWeightGradient& g, const GroupedSegment& s, VectorRange range, float* sums) {
  const Patches patches(g, s);
  for (int64_t i = 0; i < patches.count(); ++i)
    add_vectors<kStride, kGroup>(g, patches[i], patches[at_most(i + 1, patches.count() - 1)], range, sums);
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
