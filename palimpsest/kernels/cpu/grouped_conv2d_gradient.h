#pragma once

// As vector.h: only for units that are compiled once per instruction set. The gradient of the weight of
// convolutions in narrow groups (grouped_conv2d_kernels.h).

#include "palimpsest/kernels/cpu/grouped_conv2d_kernels.h"
#include "palimpsest/kernels/cpu/grouped_conv2d_lanes.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {

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
  int64_t images;
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

/// `rows` rows of `columns` pixels, `kValues` values each, from a tensor with so many values a pixel and a
/// row.
template <int kValues>
PALIMPSEST_HOST_DEVICE float* pack_rows(const float* from, int64_t rows, int64_t columns, int64_t pixel_pitch,
                                        int64_t row_pitch, int64_t ahead, float* to) {
  for (int64_t y = 0; y < rows; ++y, from += row_pitch)
    for (int64_t column = 0; column < columns; ++column, to += kValues) {
      __builtin_memcpy(to, from + column * pixel_pitch, kValues * sizeof(float));
      __builtin_prefetch(from + column * pixel_pitch + ahead, 0, 2);
    }
  return to;
}

template <int kStride, int kGroup>
PALIMPSEST_HOST_DEVICE void add_vector(const GroupedWeightGradient& g, const Patch& patch, int64_t image,
                                       int64_t vector, PackedPatch& packed, float* sums) {
  constexpr int kValues = kFillsVectors<kGroup> ? kGroup : kLanes;
  const int64_t c = first_channel(vector, g.channels, kLanes);
  const int64_t row = g.out.w * g.channels, in_row = g.in.w * g.channels;
  const float* dy = g.dy + (image * g.out.h + patch.top) * row + patch.left * g.channels + c;
  const float* x = g.x + (image * g.in.h + patch.in_top) * in_row + patch.in_left * g.channels +
                   (kFillsVectors<kGroup> ? c / kGroup * kGroup : c);
  float *packed_dy = packed.dy, *packed_x = packed.x;
  for (int64_t i = 0; i < patch.images; ++i, dy += g.out.h * row, x += g.in.h * in_row) {
    packed_dy = pack_rows<kLanes>(dy, patch.bottom - patch.top, patch.width(), g.channels, row,
                                  (patch.bottom - patch.top) * row, packed_dy);
    packed_x = pack_rows<kValues>(x, patch.in_bottom - patch.in_top, patch.in_width(), g.channels, in_row,
                                  (patch.bottom - patch.top) * kStride * in_row, packed_x);
  }
  unrolled<0, kGroup / kInputsAtOnce>([&](auto i) __attribute__((always_inline)) {
    add_patch<kStride, kGroup, i * kInputsAtOnce>(g, patch, packed, sums);
  });
}

// ---- All patches of some images and vectors

// Patches of about square shape read the least beyond their outputs.
template <int kStride, int kGroup>
void add_segment(const GroupedWeightGradient& g, const GroupedSegment& s, int64_t first_vector,
                 int64_t last_vector, float* sums) {
  constexpr int64_t kMaxColumns = kStride == 1 ? 28 : 14;
  PackedPatch packed;
  const int64_t columns = at_most(g.out.w, kMaxColumns);
  const int64_t in_columns = (columns - 1) * kStride + 3;
  const int64_t by_in = (kPatchInPixels / in_columns - 3) / kStride + 1;
  const int64_t rows = at_most(s.bottom - s.top, at_most(kPatchPixels / columns, by_in));
  const int64_t in_rows = (rows - 1) * kStride + 3;
  const bool whole = columns == g.out.w && rows == g.out.h;
  const int64_t images =
      whole ? at_most(kPatchPixels / (rows * columns), kPatchInPixels / (in_rows * in_columns)) : 1;
  for (int64_t image = s.first_image; image < s.last_image; image += images)
    for (int64_t y = s.top; y < s.bottom; y += rows)
      for (int64_t column = 0; column < g.out.w; column += columns) {
        Patch patch;
        patch.images = at_most(images, s.last_image - image);
        patch.top = y, patch.bottom = at_most(y + rows, s.bottom);
        patch.left = column, patch.right = at_most(column + columns, g.out.w);
        patch.in_top = at_least(0, patch.top * kStride - g.padding.h);
        patch.in_bottom =
            at_least(patch.in_top, at_most(g.in.h, (patch.bottom - 1) * kStride - g.padding.h + 3));
        patch.in_left = at_least(0, patch.left * kStride - g.padding.w);
        patch.in_right =
            at_least(patch.in_left, at_most(g.in.w, (patch.right - 1) * kStride - g.padding.w + 3));
        for (int64_t vector = first_vector; vector < last_vector; ++vector)
          add_vector<kStride, kGroup>(g, patch, image, vector, packed,
                                      sums + (vector - first_vector) * 9 * kGroup * kLanes);
      }
}

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
