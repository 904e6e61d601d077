// device/walk.cuh: the rows that the segments of a panel take in turn, and batches of which the copies run ahead.
#include "palimpsest/kernels/cuda/device/walk.cuh"
#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/ring.cuh"
#include "palimpsest/kernels/cuda/device/strips.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
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

/// Writes the offsets of all vectors of a segment, in any order.
template <class Of>
void write_offsets(cuda::Cut cut, int panel, int segment, int64_t* offsets, unsigned* count) {
  const Of walk(cut, panel);
  walk.template vectors<kUnroll>(cut, segment, [&](const int64_t(&at)[kUnroll], int) {
    for (int u = 0; u < kUnroll; ++u)
      if (at[u] >= 0) offsets[atomicAdd(count, 1U)] = at[u];
  });
}

/// The offsets of the last segment of the last panel, in ascending order.
template <class Of>
std::vector<int64_t> last_offsets(const cuda::Cut& cut) {
  std::vector<int64_t> offsets(static_cast<std::size_t>(cut.most_vectors()));
  unsigned count = 0;
  cuda::launch("write_offsets", {.blocks = 1, .threads = kThreadsOfTest}, nullptr, write_offsets<Of>, cut,
               cut.panels - 1, cut.segments - 1, offsets.data(), &count);
  offsets.resize(count);
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

/// Of the last segment, without the 32 bits of Cut::first_piece().
int64_t first_piece_of_last_segment(const cuda::Cut& cut) {
  return int64_t{cut.pieces} * (cut.segments - 1) / cut.segments;
}

// A GPU's memory has room for tensors that no test here could allocate.
TEST(CudaWalk, OffsetsAboveTwoToThe32AreExact) {
  constexpr int kVector = 4;
  constexpr int64_t kImages = 40;
  cuda::Cut cut;
  std::vector<int64_t> want;
  const auto is_large = [&] { return !want.empty() && want.back() > int64_t{1} << 32; };
  // Rows that begin on vectors, rows that do not, and segments of many rows.
  for (const auto [images, pixels] : {std::pair{kImages, int64_t{1} << 18},
                                      {kImages, (int64_t{1} << 18) - 3},
                                      {int64_t{1} << 20, int64_t{18}}}) {
    SCOPED_TRACE(pixels);
    cut = {}, want = {};
    cut.shape = {images, 512, pixels};
    const int per_row = static_cast<int>(pixels / kVector);
    cut.panels = 512, cut.pieces = static_cast<int>(images) * per_row, cut.segments = cut.pieces / 1000;
    for (int64_t piece = first_piece_of_last_segment(cut); piece < cut.pieces; ++piece) {
      const int64_t begin = (piece / per_row * cut.shape.c + cut.panels - 1) * pixels;
      const int64_t within = (kVector - begin % kVector) % kVector + piece % per_row * kVector;
      if (within + kVector <= pixels) want.push_back(begin + within);
    }
    ASSERT_TRUE(is_large());
    EXPECT_EQ((last_offsets<cuda::Planes<float, kVector, kThreadsOfTest>>(cut)), want);
  }
  {
    SCOPED_TRACE("columns");
    cut = {}, want = {};
    cut.shape = {kImages, 512, 1 << 18};
    cut.wide = 4, cut.panels = 512 / (cut.wide * kVector), cut.pieces = static_cast<int>(kImages) << 18;
    cut.segments = cut.pieces / 1000;
    for (int64_t piece = first_piece_of_last_segment(cut); piece < cut.pieces; ++piece)
      for (int column = 0; column < cut.wide; ++column)
        want.push_back(piece * cut.shape.c + ((cut.panels - 1) * cut.wide + column) * kVector);
    ASSERT_TRUE(is_large());
    EXPECT_EQ(last_offsets<Walk>(cut), want);
  }
  {
    SCOPED_TRACE("rows of images");
    cut = {}, want = {};
    cut.shape = {kImages * 1000, 2048, 64};
    cut.wide = 32, cut.panels = 2048 * 64 / (cut.wide * kVector), cut.pieces = static_cast<int>(cut.shape.n);
    cut.segments = 8;
    cut.rows = kThreadsOfTest / cut.wide, cut.next = cut.rows * cut.shape.c * cut.shape.s;
    cut.by_wide = cuda::Divisor<int32_t>(cut.wide);
    for (int64_t piece = first_piece_of_last_segment(cut); piece < cut.pieces; ++piece)
      for (int column = 0; column < cut.wide; ++column)
        want.push_back(piece * cut.shape.c * cut.shape.s +
                       (int64_t{cut.panels - 1} * cut.wide + column) * kVector);
    ASSERT_TRUE(is_large());
    EXPECT_EQ((last_offsets<cuda::ImageRows<kVector, kThreadsOfTest>>(cut)), want);
  }
}

}  // namespace
}  // namespace palimpsest::testing
