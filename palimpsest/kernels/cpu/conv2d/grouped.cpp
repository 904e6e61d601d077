#include "palimpsest/kernels/cpu/conv2d/grouped.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/conv2d/grouped_kernels.h"
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
struct PartialGradients;

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

/// Calls task(i) for i in [0, count). Threads take runs of neighbouring tasks, because each task prefetches
/// for the next task.
template <class Task>
void parallel_runs(int64_t count, const Task& task) {
  const int64_t runs = std::min<int64_t>(count, int64_t{4} * max_threads());
  parallel_tasks(runs, [&](int64_t run) {
    for (int64_t i = count * run / runs; i < count * (run + 1) / runs; ++i) task(i);
  });
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

/// The shares of the weight's gradient that are summed separately; they depend on the shape alone, not on the
/// number of threads. About 32 tasks, chunks of the channels times segments of the images: with more
/// segments, partial sums would take most of the time.
struct Segments {
  int64_t chunk, chunks;  // vectors of one, and how many
  int64_t images, rows;   // of one segment
  int64_t across, down;   // segments along both
  const Conv2dProblem& problem;

  Segments(const Conv2dProblem& convolution, int64_t vectors, int64_t sums) : problem(convolution) {
    // A chunk has so few vectors that a patch of them, and the next patch, stay in a core's second-level
    // cache, and so many that their reads of a pixel are a stream.
    constexpr int64_t kMaxChunk = 8, kTasks = 32, kMaxFloats = int64_t{1} << 21;
    chunks = (vectors + kMaxChunk - 1) / kMaxChunk;
    chunk = (vectors + chunks - 1) / chunks;
    const int64_t data =
        problem.n * (problem.in.h * problem.in.w + problem.out.h * problem.out.w) * problem.c_in;
    const int64_t affordable = std::max<int64_t>(1, std::min(data / 4, kMaxFloats) / sums);
    const int64_t wanted = std::min((kTasks + chunks - 1) / chunks, affordable);
    images = (problem.n + wanted - 1) / wanted;
    across = (problem.n + images - 1) / images;
    const int64_t cuts = std::max<int64_t>(1, wanted / across);
    rows = std::min(problem.out.h, std::max<int64_t>(7, (problem.out.h + cuts - 1) / cuts));
    down = (problem.out.h + rows - 1) / rows;
  }

  int64_t count() const { return across * down; }
  GroupedSegment operator[](int64_t i) const {
    const int64_t image = i / down * images, top = i % down * rows;
    return {image, std::min(problem.n, image + images), top, std::min(problem.out.h, top + rows)};
  }
};

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
  const int64_t g = problem.group_in(), lanes = kernels.lanes, block = 9 * g * lanes;
  const int64_t vectors = vectors_of(problem.c_in, lanes);
  const Segments segments(problem, vectors, vectors * block);
  float* const sums = scratch<PartialGradients>(segments.count() * vectors * block);
  parallel_runs(segments.count() * segments.chunks, [&](int64_t task) {
    const int64_t segment = task % segments.count(), first = task / segments.count() * segments.chunk;
    const int64_t next = std::min(segment + 1, segments.count() - 1);
    const int64_t last = std::min(vectors, first + segments.chunk);
    if (first < last)
      kernels.weight_gradient(gradient, segments[segment], segments[next], first, last,
                              sums + (segment * vectors + first) * block);
  });
  parallel_tasks(vectors, [&](int64_t vector) {
    float* const total = sums + vector * block;
    for (int64_t segment = 1; segment < segments.count(); ++segment) {
      const float* const part = total + segment * vectors * block;
      for (int64_t k = 0; k < block; ++k) total[k] += part[k];
    }
    const int64_t channel = first_channel(vector, problem.c_in, lanes);
    float* const to = dw + channel * 9 * g;
    // The last vector may begin within the one before, whose channels another thread writes.
    for (int64_t lane = vector * lanes - channel; lane < lanes; ++lane)
      for (int64_t tap = 0; tap < 9; ++tap)
        for (int64_t i = 0; i < g; ++i) to[(lane * 9 + tap) * g + i] = total[(i * 9 + tap) * lanes + lane];
  });
}

}  // namespace palimpsest::kernels::cpu::conv2d
