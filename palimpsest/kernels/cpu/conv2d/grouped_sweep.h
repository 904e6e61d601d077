#pragma once

// Only for units of one instruction set, as simd/vector.h. The forward pass and the gradient of the input of
// convolutions in narrow groups (grouped_kernels.h).

#include "palimpsest/kernels/cpu/conv2d/grouped_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/grouped_lanes.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::conv2d::first_channel;
using cpu::conv2d::GroupedSweep;
using cpu::conv2d::vectors_of;

namespace {

// ---- Strips: some neighbouring columns of the result, and which source columns lead there

template <int kStride, int kWidth>
struct ForwardStrip {
  static constexpr int kPixels = kWidth;                    // columns of the result
  static constexpr int kSpan = (kWidth - 1) * kStride + 3;  // columns of the source, from first_source on
  static constexpr int kAdvance = kWidth * kStride;  // from this strip's first_source to the next one's
  static constexpr int64_t first_source(int64_t column, int64_t padding) {
    return column * kStride - padding;
  }
  /// Returns the column of the result to which tap kx leads from column m of the source; negative if none.
  static constexpr int target(int m, int kx) {
    const int from_first = m - kx;
    const bool leads = from_first >= 0 && from_first % kStride == 0 && from_first / kStride < kWidth;
    return leads ? from_first / kStride : -1;
  }
};

/// Stride 2. kPhase = (first column + padding) % 2 decides which taps lead to a column.
template <int kPhase, int kWidth>
struct TransposedStrip {
  static constexpr int kPixels = kWidth;
  static constexpr int kSpan = (kWidth + 1 - kPhase) / 2 + 1;
  static constexpr int kAdvance = kWidth / 2;
  static constexpr int64_t first_source(int64_t column, int64_t padding) {
    return (column + padding + kPhase) / 2 - 1;
  }
  static constexpr int target(int m, int kx) {
    const int at = 2 * m + kx - 2 + kPhase;
    return at < kWidth ? at : -1;
  }
};

// ---- One row of a strip

constexpr int kMaxSpan = 16, kBroadcastPitch = 16;

/// The size of one row of the source's strip, ready for the multiply-adds. Where groups fill vectors, it is
/// (span, kBroadcastPitch), the group's inputs of each pixel; else (inputs, span, lanes), every pixel spread.
/// One vector is added: reads of one slot would wait for writes to another slot whole pages away (a third of
/// the time).
constexpr int kSlotFloats =
    kMaxSpan * (kLanes * kLanes / 2 > kBroadcastPitch ? kLanes * kLanes / 2 : kBroadcastPitch) + 16;

struct Tap {
  const float* slot;
  const float* weights;  // (i, kx, lanes)
};

/// The row to which `count` taps lead. Columns [first, last) of the source lie in the image; at most the two
/// outermost on each side do not.
template <class Strip, bool kBroadcast>
__attribute__((noinline)) void finish_row(const Tap* taps, int64_t count, int64_t group, int64_t first,
                                          int64_t last, float* result, int64_t pitch) {
  // A multiply-add takes 4 cycles and two start per cycle: at least 8 sums are needed. Where the row has
  // fewer pixels, even and odd inputs have sums of their own.
  constexpr int kChains = Strip::kPixels <= 7 && kManyRegisters ? 2 : 1;
  constexpr int kSpan = Strip::kSpan, kNextInput = kBroadcast ? 1 : kSpan * kLanes;
  F32 sums[kChains][Strip::kPixels] = {};
  for (int64_t t = 0; t < count; ++t) {
    const float* slot = taps[t].slot;
    const float* weights = taps[t].weights;
    for (int64_t i = 0; i < group; i += kChains) {
      unrolled<0, kChains>([&](auto chain) __attribute__((always_inline)) {
        F32 x[kSpan];
        unrolled<0, kSpan>([&](auto m) __attribute__((always_inline)) {
          if constexpr (kBroadcast)
            x[m] = broadcast_load(slot + m * kBroadcastPitch);
          else
            x[m] = load<F32>(slot + m * kLanes);
          keep_in_register(x[m]);
        });
        unrolled<0, 3>([&](auto kx) __attribute__((always_inline)) {
          F32 w = load<F32>(weights + kx * kLanes);
          keep_in_register(w);
          unrolled<0, kSpan>([&](auto m) __attribute__((always_inline)) {
            constexpr int kTarget = Strip::target(m, kx);
            if constexpr (kTarget >= 0) {
              if constexpr (m < 2 || m >= kSpan - 2)
                if (m < first || m >= last) return;
              sums[chain][kTarget] += x[m] * w;
            }
          });
        });
        slot += kNextInput;
        weights += 3 * kLanes;
      });
    }
  }
  unrolled<0, Strip::kPixels>([&](auto j) __attribute__((always_inline)) {
    F32 sum = sums[0][j];
    if constexpr (kChains == 2) sum += sums[1][j];
    store(result + j * pitch, sum);
  });
}

/// Copies columns [first, last) of a row of the source, from x on, into a slot. Prefetches `ahead`, one
/// vector per column.
template <int kSpan, int kGroup>
PALIMPSEST_HOST_DEVICE void fill_slot(const float* x, int64_t pitch, int64_t first, int64_t last, float* slot,
                                      const float* ahead) {
  for (int64_t m = first; m < last; ++m) {
    const float* pixel = x + m * pitch;
    fetch_ahead(ahead + m * kLanes);
    if constexpr (kFillsVectors<kGroup>)
      __builtin_memcpy(slot + m * kBroadcastPitch, pixel, kGroup * sizeof(float));
    else
      unrolled<0, kGroup>([&](auto i) __attribute__((always_inline)) {
        store(slot + (i * kSpan + m) * kLanes, spread<kGroup, i>(load<F32>(pixel)));
      });
  }
}

// ---- Strips down some rows

/// Some rows of the result.
struct ResultRows {
  int64_t image, begin, end;
};

/// Returns the row of the source from which tap ky leads to `row` of the result; negative if there is none.
PALIMPSEST_HOST_DEVICE int64_t source_row(const GroupedSweep& s, int64_t row, int64_t ky) {
  int64_t y = row * s.stride - s.padding.h + ky;
  if (s.transposed) {
    const int64_t doubled = row + s.padding.h - ky;
    y = doubled >= 0 && doubled % 2 == 0 ? doubled / 2 : -1;
  }
  return y < s.source_size.h ? y : -1;
}

/// The distance from the first value of this strip to the first value of the next strip.
struct Ahead {
  int64_t source, result;
};

/// One vector of channels of a strip: each row of the source is spread once. Each call also prefetches its
/// share of the next strip into the second-level cache. The values of one vector lie too far apart for the
/// processor to see a stream, and would each be waited for: twice the time at 56x56 pixels, half of it for
/// the result.
template <class Strip, int kGroup>
PALIMPSEST_HOST_DEVICE void sweep_vector(const GroupedSweep& s, ResultRows rows, int64_t column,
                                         int64_t vector, Ahead ahead) {
  alignas(64) float slots[3][kSlotFloats];
  const int64_t c = first_channel(vector, s.channels, kLanes);
  const int64_t from = Strip::first_source(column, s.padding.w);
  const int64_t first = from < 0 ? -from : 0;
  const int64_t last = from + Strip::kSpan > s.source_size.w ? s.source_size.w - from : Strip::kSpan;
  const int64_t source_pitch = s.source_size.w * s.channels, result_pitch = s.result_size.w * s.channels;
  const int64_t start = rows.image * s.source_size.h * source_pitch + from * s.channels;
  const float* const x = s.source + start + (kFillsVectors<kGroup> ? c / kGroup * kGroup : c);
  const float* const next = s.source + start + ahead.source + vector * Strip::kAdvance * kLanes;
  const float* const weights = s.weights + vector * 9 * kGroup * kLanes;
  float* to = s.result + (rows.image * s.result_size.h + rows.begin) * result_pitch + column * s.channels + c;
  const float* to_next = to - c + ahead.result + vector * Strip::kPixels * kLanes;
  int64_t filled = 0;  // rows of the source before this one have been in a slot
  for (int64_t row = rows.begin; row < rows.end; ++row, to += result_pitch, to_next += result_pitch) {
    for (int64_t j = 0; j < Strip::kPixels; ++j) __builtin_prefetch(to_next + j * kLanes, 1, 2);
    Tap taps[3];
    int64_t count = 0;
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t ky = s.transposed ? 2 - i : i;  // so that rows of the source ascend
      const int64_t y = source_row(s, row, ky);
      if (y < 0) continue;
      float* const slot = slots[y % 3];
      if (y >= filled)
        fill_slot<Strip::kSpan, kGroup>(x + y * source_pitch, s.channels, first, last, slot,
                                        next + y * source_pitch);
      filled = y >= filled ? y + 1 : filled;
      taps[count++] = {slot, weights + ky * 3 * kGroup * kLanes};
    }
    finish_row<Strip, kFillsVectors<kGroup>>(taps, count, kGroup, first, last, to, s.channels);
  }
}

/// Computes all channels of a strip and returns its width.
template <class Strip, int kGroup>
__attribute__((noinline)) int64_t sweep_strip(const GroupedSweep& s, ResultRows rows, int64_t column) {
  Ahead ahead{Strip::kAdvance, Strip::kPixels};
  if (column + Strip::kPixels >= s.result_size.w) {  // next is the first strip of the rows below
    const int64_t height = rows.end - rows.begin;
    const int64_t source_height = s.transposed ? height / 2 : height * s.stride;
    ahead = {source_height * s.source_size.w - Strip::first_source(column, s.padding.w),
             height * s.result_size.w - column};
  }
  ahead = {ahead.source * s.channels, ahead.result * s.channels};
  for (int64_t vector = 0; vector < vectors_of(s.channels, kLanes); ++vector)
    sweep_vector<Strip, kGroup>(s, rows, column, vector, ahead);
  return Strip::kPixels;
}

// Strips are as wide as the registers allow, because each strip spreads two columns beyond its own.
constexpr int kWide = kManyRegisters ? 14 : 7, kWideTransposed = kManyRegisters ? 14 : 8;

template <int kStride, int kGroup>
PALIMPSEST_HOST_DEVICE int64_t forward_strip(const GroupedSweep& s, ResultRows rows, int64_t column) {
  const int64_t left = s.result_size.w - column;
  if constexpr (kStride == 1 && kWide > 7)
    if (left >= kWide) return sweep_strip<ForwardStrip<kStride, kWide>, kGroup>(s, rows, column);
  if (left >= 7) return sweep_strip<ForwardStrip<kStride, 7>, kGroup>(s, rows, column);
  if (left >= 2) return sweep_strip<ForwardStrip<kStride, 2>, kGroup>(s, rows, column);
  return sweep_strip<ForwardStrip<kStride, 1>, kGroup>(s, rows, column);
}

template <int kPhase, int kGroup>
PALIMPSEST_HOST_DEVICE int64_t transposed_strip(const GroupedSweep& s, ResultRows rows, int64_t column) {
  const int64_t left = s.result_size.w - column;
  if (left >= kWideTransposed)
    return sweep_strip<TransposedStrip<kPhase, kWideTransposed>, kGroup>(s, rows, column);
  if (left >= 2) return sweep_strip<TransposedStrip<kPhase, 2>, kGroup>(s, rows, column);
  return sweep_strip<TransposedStrip<kPhase, 1>, kGroup>(s, rows, column);
}

template <int kGroup>
void sweep_groups(const GroupedSweep& s, const ResultRows& rows) {
  for (int64_t column = 0; column < s.result_size.w;) {
    if (s.transposed)
      column += (column + s.padding.w) % 2 == 0 ? transposed_strip<0, kGroup>(s, rows, column)
                                                : transposed_strip<1, kGroup>(s, rows, column);
    else
      column += s.stride == 1 ? forward_strip<1, kGroup>(s, rows, column)
                              : forward_strip<2, kGroup>(s, rows, column);
  }
}

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
