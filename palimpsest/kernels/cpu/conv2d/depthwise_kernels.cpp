// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/conv2d/depthwise_kernels.h"

#include "palimpsest/kernels/cpu/conv2d/grouped_lanes.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::conv2d::DepthwiseGradient;
using cpu::conv2d::DepthwiseKernels;
using cpu::conv2d::first_channel;
using cpu::conv2d::kWidestWindow;
using cpu::conv2d::Segment;

namespace {

/// Rows of the window whose sums are in registers together, beside a value of dy and, without fused
/// multiply-add, a product.
template <int kWidth>
constexpr int kRowsAtOnce =
    (kManyRegisters ? 26 : 11) / kWidth < kWidth ? (kManyRegisters ? 26 : 11) / kWidth : kWidth;

/// The outputs of a row whose whole window lies within the columns of the image.
struct Inside {
  int64_t begin, end;

  explicit Inside(const Conv2dProblem& p) {
    const int64_t last_tap = (p.kernel_size.w - 1) * p.dilation.w, room = p.in.w - 1 - last_tap + p.padding.w;
    begin = (p.padding.w + p.stride.w - 1) / p.stride.w;
    end = room < 0 ? 0 : room / p.stride.w + 1;
    if (begin > p.out.w) begin = p.out.w;
    if (end > p.out.w) end = p.out.w;
    if (end < begin) end = begin;
  }
};

/// Adds one row of dy and kRows rows of x, the same vector of channels of each, to sums (kRows, kWidth, lanes).
template <int kWidth, int kRows>
__attribute__((noinline)) void add_row(const Conv2dProblem& p, const Inside& inside, const float* const* x,
                                       const float* dy, float* sums) {
  const int64_t pixel = p.c_in, tap = p.dilation.w * pixel, step = p.stride.w * pixel;
  F32 sum[kRows][kWidth] = {};
  const float* from[kRows];
  const auto at_border = [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
    for (int64_t ow = begin; ow < end; ++ow) {
      const F32 d = load<F32>(dy + ow * pixel);
      unrolled<0, kWidth>([&](auto kx) __attribute__((always_inline)) {
        const int64_t iw = ow * p.stride.w - p.padding.w + kx * p.dilation.w;
        if (iw < 0 || iw >= p.in.w) return;
        unrolled<0, kRows>([&](auto ky) __attribute__((always_inline)) {
          sum[ky][kx] += d * load<F32>(x[ky] + iw * pixel);
        });
      });
    }
  };
  at_border(0, inside.begin);
  unrolled<0, kRows>([&](auto ky) __attribute__((always_inline)) {
    from[ky] = x[ky] + (inside.begin * p.stride.w - p.padding.w) * pixel;
  });
  for (int64_t ow = inside.begin; ow < inside.end; ++ow) {
    F32 d = load<F32>(dy + ow * pixel);
    keep_in_register(d);
    unrolled<0, kRows>([&](auto ky) __attribute__((always_inline)) {
      unrolled<0, kWidth>(
          [&](auto kx) __attribute__((always_inline)) { sum[ky][kx] += d * load<F32>(from[ky] + kx * tap); });
      from[ky] += step;
    });
  }
  at_border(inside.end, p.out.w);
  unrolled<0, kRows * kWidth>([&](auto k) __attribute__((always_inline)) {
    store(sums + k * kLanes, load<F32>(sums + k * kLanes) + sum[k / kWidth][k % kWidth]);
  });
}

/// Adds output row oh of one image. x: its first row, at the vector's first channel; dy: row oh, likewise.
template <int kWidth>
void add_output_row(const Conv2dProblem& p, const Inside& inside, int64_t oh, const float* x, const float* dy,
                    float* sums) {
  constexpr int kRows = kRowsAtOnce<kWidth>;
  const int64_t row = p.in.w * p.c_in, top = oh * p.stride.h - p.padding.h;
  for (int64_t ky = 0; ky < p.kernel_size.h; ky += kRows) {
    const float* from[kRows];
    int64_t there = 0;
    for (int64_t k = 0; k < kRows; ++k) {
      const int64_t ih = top + (ky + k) * p.dilation.h;
      const bool valid = ky + k < p.kernel_size.h && ih >= 0 && ih < p.in.h;
      from[k] = valid ? x + ih * row : nullptr;
      there += static_cast<int64_t>(valid);
    }
    if (there == kRows) {
      add_row<kWidth, kRows>(p, inside, from, dy, sums + ky * kWidth * kLanes);
    } else {
      for (int64_t k = 0; k < kRows; ++k)
        if (from[k]) add_row<kWidth, 1>(p, inside, from + k, dy, sums + (ky + k) * kWidth * kLanes);
    }
  }
}

template <int kWidth>
void add_segment(const DepthwiseGradient& g, const Segment& segment, int64_t first_vector,
                 int64_t last_vector, float* sums) {
  // Rows that are read for every vector in turn: as many as stay in a core's second-level cache.
  constexpr int64_t kCachedFloats = int64_t{48} << 10;
  const Conv2dProblem& p = g.problem;
  const Inside inside(p);
  const int64_t floats_per_row = (last_vector - first_vector) * kLanes * (p.stride.h * p.in.w + p.out.w);
  const int64_t rows = kCachedFloats / floats_per_row < 1 ? 1 : kCachedFloats / floats_per_row;
  const int64_t block = p.kernel_size.h * kWidth * kLanes;
  for (int64_t image = segment.first_image; image < segment.last_image; ++image)
    for (int64_t top = segment.top; top < segment.bottom; top += rows) {
      const int64_t bottom = top + rows < segment.bottom ? top + rows : segment.bottom;
      for (int64_t vector = first_vector; vector < last_vector; ++vector) {
        const int64_t c = first_channel(vector, p.c_in, kLanes);
        const float* const x = g.x + image * p.in.h * p.in.w * p.c_in + c;
        const float* const dy = g.dy + image * p.out.h * p.out.w * p.c_in + c;
        for (int64_t oh = top; oh < bottom; ++oh)
          add_output_row<kWidth>(p, inside, oh, x, dy + oh * p.out.w * p.c_in,
                                 sums + (vector - first_vector) * block);
      }
    }
}

void weight_gradient(const DepthwiseGradient& g, const Segment& segment, int64_t first_vector,
                     int64_t last_vector, float* sums) {
  const int64_t width = g.problem.kernel_size.w;
  const auto size =
      static_cast<unsigned long>((last_vector - first_vector) * g.problem.kernel_size.h * width * kLanes);
  __builtin_memset(sums, 0, size * sizeof(float));
  switch (width) {
    case 3:
      return add_segment<3>(g, segment, first_vector, last_vector, sums);
    case 5:
      return add_segment<5>(g, segment, first_vector, last_vector, sums);
    case 7:
      return add_segment<7>(g, segment, first_vector, last_vector, sums);
    case 9:
      return add_segment<9>(g, segment, first_vector, last_vector, sums);
    default:
      return add_segment<kWidestWindow>(g, segment, first_vector, last_vector, sums);
  }
}

}  // namespace

extern const DepthwiseKernels kDepthwise;
const DepthwiseKernels kDepthwise{kLanes, weight_gradient};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
