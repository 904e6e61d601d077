#include "palimpsest/kernels/cpu/conv2d/grouped.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/conv2d/grouped_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/segments.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>

namespace palimpsest::kernels::cpu::conv2d {
namespace {

const GroupedKernels& grouped_kernels() {
  return current_instruction_set().grouped_conv2d;
}

constexpr int64_t kMaxLanes = 16;

struct PackedWeights;

enum class PackedFor { kForward, kTransposed, kTransposedMirrored };

/// Packs the weights (C, ky, kx, i) in the order of GroupedSweep::weights. If transposed, the roles in a
/// group are exchanged: lanes are inputs of the convolution, and i counts its outputs.
const float* packed_weights(const Conv2dProblem& problem, const float* w, PackedFor purpose) {
  const int64_t lanes = grouped_kernels().lanes, g = problem.group_in(), channel = 9 * g;
  const int64_t vectors = vectors_of(problem.c_in, lanes);
  const bool forward = purpose == PackedFor::kForward, mirrored = purpose == PackedFor::kTransposedMirrored;
  float* const packed = scratch<PackedWeights>(vectors * channel * lanes);
  parallel_tasks(vectors, [&](int64_t vector) {
    int64_t from[kMaxLanes];  // where each lane's weights begin
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t c = first_channel(vector, problem.c_in, lanes) + lane;
      from[lane] = forward ? c * channel : c / g * g * channel + c % g;
    }
    float* to = packed + vector * channel * lanes;
    for (int64_t ky = 0; ky < 3; ++ky)
      for (int64_t i = 0; i < g; ++i)
        for (int64_t kx = 0; kx < 3; ++kx) {
          const int64_t tap = mirrored ? 8 - (ky * 3 + kx) : ky * 3 + kx;
          const float* const first = w + tap * g + (forward ? i : i * channel);
          for (int64_t lane = 0; lane < lanes; ++lane) *to++ = first[from[lane]];
        }
  });
  return packed;
}

void run_sweep(int64_t images, const GroupedSweep& s) {
  // A block has so many rows that the two rows which neighbouring blocks both read cost little, and so few
  // that the rows of all channels, and of the next block, stay in a core's second-level cache.
  constexpr int64_t kMaxRows = 8;
  const GroupedKernels& kernels = grouped_kernels();
  const int64_t height = s.result_size.h, blocks = (height + kMaxRows - 1) / kMaxRows;
  parallel_runs(images * blocks, [&](int64_t i) {
    const int64_t image = i / blocks, block = i % blocks;
    kernels.sweep(s, image, height * block / blocks, height * (block + 1) / blocks);
  });
}

}  // namespace

bool fits_grouped(const Conv2dProblem& problem) {
  const int64_t g = problem.group_in();
  const auto padding_fits = [](int64_t padding) { return padding >= 0 && padding <= 2; };
  return (g == 2 || g == 4 || g == 8 || g == 16) && problem.group_out() == g && problem.kernel_size.h == 3 &&
         problem.kernel_size.w == 3 && problem.dilation.h == 1 && problem.dilation.w == 1 &&
         problem.stride.h == problem.stride.w && (problem.stride.h == 1 || problem.stride.h == 2) &&
         padding_fits(problem.padding.h) && padding_fits(problem.padding.w) &&
         problem.c_in >= grouped_kernels().lanes && problem.out.h >= 1 && problem.out.w >= 1;
}

void grouped_forward(const Conv2dProblem& problem, const float* x, const float* w, float* y) {
  run_sweep(problem.n, {.source = x,
                        .weights = packed_weights(problem, w, PackedFor::kForward),
                        .result = y,
                        .channels = problem.c_in,
                        .group = problem.group_in(),
                        .source_size = problem.in,
                        .result_size = problem.out,
                        .stride = problem.stride.h,
                        .padding = problem.padding,
                        .transposed = false});
}

void grouped_backward_input(const Conv2dProblem& problem, const float* dy, const float* w, float* dx) {
  const bool transposed = problem.stride.h == 2;
  run_sweep(problem.n,
            {.source = dy,
             .weights = packed_weights(problem, w,
                                       transposed ? PackedFor::kTransposed : PackedFor::kTransposedMirrored),
             .result = dx,
             .channels = problem.c_in,
             .group = problem.group_in(),
             .source_size = problem.out,
             .result_size = problem.in,
             .stride = problem.stride.h,
             .padding = transposed ? problem.padding : Pair2{2 - problem.padding.h, 2 - problem.padding.w},
             .transposed = transposed});
}

void grouped_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw) {
  const GroupedKernels& kernels = grouped_kernels();
  const GroupedWeightGradient gradient{.x = x,
                                       .dy = dy,
                                       .channels = problem.c_in,
                                       .group = problem.group_in(),
                                       .in = problem.in,
                                       .out = problem.out,
                                       .stride = problem.stride.h,
                                       .padding = problem.padding};
  sum_segments(
      problem, kernels.lanes,
      [&](const Segment& segment, const Segment& next, int64_t first, int64_t last, float* sums) {
        kernels.weight_gradient(gradient, segment, next, first, last, sums);
      },
      dw);
}

}  // namespace palimpsest::kernels::cpu::conv2d
