#pragma once

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/conv2d.h"
#include "palimpsest/kernels/cpu/conv2d/channel_vectors.h"
#include "palimpsest/kernels/cpu/simd/scratch.h"

#include <algorithm>

/// The gradient of the weight of convolutions in groups as a sum over segments of the images, on all threads.
namespace palimpsest::kernels::cpu::conv2d {

/// Calls task(i) for i in [0, count). Threads take runs of neighbouring tasks, because each task prefetches
/// for the next task.
template <class Task>
void parallel_runs(int64_t count, const Task& task) {
  const int64_t runs = std::min<int64_t>(count, int64_t{4} * max_threads());
  parallel_tasks(runs, [&](int64_t run) {
    for (int64_t i = count * run / runs; i < count * (run + 1) / runs; ++i) task(i);
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
  Segment operator[](int64_t i) const {
    const int64_t image = i / down * images, top = i % down * rows;
    return {image, std::min(problem.n, image + images), top, std::min(problem.out.h, top + rows)};
  }
};

struct PartialGradients;

/// Writes dw, the sum of the shares that write_share(segment, next segment, first vector, last vector, sums)
/// computes. A share lies in sums (vectors, i, ky, kx, lanes), where i counts the inputs of a lane's group.
template <class WriteShare>
void sum_segments(const Conv2dProblem& problem, int64_t lanes, const WriteShare& write_share, float* dw) {
  const int64_t g = problem.group_in(), taps = problem.kernel_size.h * problem.kernel_size.w;
  const int64_t block = taps * g * lanes, vectors = vectors_of(problem.c_in, lanes);
  const Segments segments(problem, vectors, vectors * block);
  float* const sums = scratch<PartialGradients>(segments.count() * vectors * block);
  parallel_runs(segments.count() * segments.chunks, [&](int64_t task) {
    const int64_t segment = task % segments.count(), first = task / segments.count() * segments.chunk;
    const int64_t next = std::min(segment + 1, segments.count() - 1);
    const int64_t last = std::min(vectors, first + segments.chunk);
    if (first < last)
      write_share(segments[segment], segments[next], first, last, sums + (segment * vectors + first) * block);
  });
  parallel_tasks(vectors, [&](int64_t vector) {
    float* const total = sums + vector * block;
    for (int64_t segment = 1; segment < segments.count(); ++segment) {
      const float* const part = total + segment * vectors * block;
      for (int64_t k = 0; k < block; ++k) total[k] += part[k];
    }
    const int64_t channel = first_channel(vector, problem.c_in, lanes);
    float* const to = dw + channel * taps * g;
    // The last vector may begin within the one before, whose channels another thread writes.
    for (int64_t lane = vector * lanes - channel; lane < lanes; ++lane)
      for (int64_t tap = 0; tap < taps; ++tap)
        for (int64_t i = 0; i < g; ++i)
          to[(lane * taps + tap) * g + i] = total[(i * taps + tap) * lanes + lane];
  });
}

}  // namespace palimpsest::kernels::cpu::conv2d
