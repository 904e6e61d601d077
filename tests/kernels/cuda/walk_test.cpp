// device/walk.cuh: the rows that the segments of a panel take in turn, and batches of which the copies run ahead.
#include "palimpsest/kernels/cuda/device/walk.cuh"
#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/ring.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace palimpsest::testing {
namespace {

namespace cuda = kernels::cuda;

constexpr int kThreadsOfTest = 64, kSlots = 3, kUnroll = 2;
using Walk = cuda::Columns<float, 4, kThreadsOfTest, 4>;
using Slots = cuda::Ring<float, 4, 1, kUnroll, kSlots, kThreadsOfTest>;

/// Adds to `times` how often each value of x is seen, and to `rows` the rows of which a thread has seen the first vector.
/// Sets in_order to 0 for a thread that meets a row after one before it.
void see_values(cuda::Cut cut, const float* x, int* times, int* rows, int* in_order) {
  PALIMPSEST_SHARED(ring, Slots);
  const int segment = static_cast<int>(blockIdx.x);
  const Walk walk(cut, 0);
  const auto thread = static_cast<int64_t>(blockIdx.x) * kThreadsOfTest + threadIdx.x;
  int64_t newest = -1;  // vectors come from the last row to the first
  const auto see = [&](int slot, int u) {
    cuda::Stored<float, 4> in;
    ring.read(in, slot, u, 0);
    for (int i = 0; i < 4; ++i) ++times[static_cast<int64_t>(in.value(i))];
    const auto at = static_cast<int64_t>(in.value(0));
    if (newest >= 0 && at >= newest) in_order[thread] = 0;
    newest = at;
    if (at % cut.shape.c == 0) ++rows[thread];
  };
  walk.template vectors_ahead<kUnroll, kSlots>(
      cut, segment,
      [&](const int64_t(&at)[kUnroll], int slot) {
        for (int u = 0; u < kUnroll; ++u)
          if (at[u] >= 0) ring.start(slot, u, 0, x + at[u]);
      },
      [&](int slot, int vectors) {
        for (int u = 0; u < vectors; ++u) see(slot, u);
      },
      [&](int slot) {
        for (int u = 0; u < kUnroll; ++u) see(slot, u);
      });
}

TEST(CudaWalk, SegmentsTakeEveryRowOnceInTurnAndCountTheirOwn) {
  for (const int wide : {1, 2, 4})
    for (const int segments : {1, 2, 3, 7})
      for (const int pieces : {1, 2, 15, 16, 17, 63, 64, 65, 127, 300, 449}) {
        SCOPED_TRACE(::testing::Message()
                     << wide << " wide, " << segments << " segments, " << pieces << " pieces");
        cuda::Cut cut;
        cut.shape = {1, wide * 4, pieces};
        cut.panels = 1, cut.pieces = pieces, cut.segments = segments, cut.wide = wide;
        std::vector<float> x(static_cast<std::size_t>(cut.shape.elements()));
        std::iota(x.begin(), x.end(), 0.F);
        const auto threads = static_cast<std::size_t>(segments) * kThreadsOfTest;
        std::vector<int> times(x.size()), rows(threads), in_order(threads, 1);
        cuda::launch("see_values", {.blocks = segments, .threads = kThreadsOfTest}, nullptr, see_values, cut,
                     static_cast<const float*>(x.data()), times.data(), rows.data(), in_order.data());
        EXPECT_EQ(times, std::vector<int>(x.size(), 1));
        EXPECT_EQ(in_order, std::vector<int>(threads, 1));
        for (int s = 0; s < segments; ++s)
          EXPECT_EQ(
              cut.pieces_in_turn(s, kThreadsOfTest / wide),
              std::accumulate(rows.begin() + s * kThreadsOfTest, rows.begin() + (s + 1) * kThreadsOfTest, 0));
      }
}

TEST(CudaWalk, SegmentsOfTheLargestPanelCountAllItsPieces) {
  for (const int segments : {1, 255, 256})
    for (const int rows : {32, 256}) {
      cuda::Cut cut;
      cut.pieces = static_cast<int>(cuda::kMostPieces), cut.segments = segments;
      int64_t sum = 0;
      for (int s = 0; s < segments; ++s) sum += cut.pieces_in_turn(s, rows);
      EXPECT_EQ(sum, cuda::kMostPieces);
    }
}

}  // namespace
}  // namespace palimpsest::testing
