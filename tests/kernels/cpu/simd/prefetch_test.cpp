#include "palimpsest/kernels/cpu/simd/prefetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::cpu::Prefetch;
using kernels::cpu::ReadAhead;

constexpr int64_t kLine = 64;

struct Prefetched {
  std::set<int64_t> lines;  ///< counted from the memory's start
  int64_t shares = 0;       ///< products that prefetch something
  int64_t most_lines = 0;   ///< of a product
};

/// Returns what so many products of so many steps prefetch. Their kernels take a place per step in the same way.
Prefetched all_of(Prefetch prefetch, const char* memory, int64_t products, int64_t steps) {
  const char nothing = 0;
  Prefetched all;
  for (int64_t product = 0; product < products; ++product) {
    const ReadAhead ahead = prefetch.next(&nothing);
    if (ahead.from == &nothing) {
      EXPECT_EQ(ahead.step, 0);
      continue;
    }
    ++all.shares;
    std::set<int64_t> own;
    for (int64_t k = 0; k < steps; ++k)
      own.insert((static_cast<const char*>(ahead.from) - memory + k / ahead.row_steps * ahead.row_bytes +
                  k % ahead.row_steps * ahead.step) /
                 kLine);
    all.most_lines = std::max(all.most_lines, static_cast<int64_t>(own.size()));
    all.lines.insert(own.begin(), own.end());
  }
  return all;
}

TEST(Prefetch, OfBytesReachesEachLineInSharesOfAllProducts) {
  const std::vector<char> memory(1);  // whose address is only compared
  for (const int64_t products : {1, 2, 3, 12, 96})
    for (const int64_t steps : {16, 64, 100, 256})
      for (const int64_t per_step : {1, 3, 16, 64}) {
        SCOPED_TRACE(::testing::PrintToString(std::vector{products, steps, per_step}));
        const int64_t bytes = products * steps * per_step, lines = (bytes + kLine - 1) / kLine;
        const Prefetched all =
            all_of(Prefetch::of_bytes(memory.data(), bytes, products, steps), memory.data(), products, steps);
        EXPECT_EQ(all.shares, products);
        EXPECT_LE(all.most_lines, steps * per_step / kLine + 2);
        EXPECT_EQ(static_cast<int64_t>(all.lines.size()), lines);
        EXPECT_EQ(*all.lines.rbegin(), lines - 1);
      }
}

TEST(Prefetch, OfMoreLinesThanStepsTakesALinePerStep) {
  const std::vector<char> memory(1);
  const Prefetched all = all_of(Prefetch::of_bytes(memory.data(), 100'000, 3, 16), memory.data(), 3, 16);
  EXPECT_EQ(all.shares, 3);
  EXPECT_EQ(all.lines.size(), 48);
}

TEST(Prefetch, OfRowsReachesEachLineOfEachRow) {
  const std::vector<char> memory(1);
  for (const int64_t products : {1, 2, 7, 256, 300})
    for (const int64_t rows : {1, 49, 256})
      for (const int64_t size : {64, 256, 1024}) {
        SCOPED_TRACE(::testing::PrintToString(std::vector{products, rows, size}));
        constexpr int64_t kSteps = 256;
        const int64_t row_bytes = 4 * size, each = (rows + products - 1) / products;
        if (size / kLine > kSteps / each) continue;  // more lines than steps
        const Prefetched all =
            all_of(Prefetch::of_rows(memory.data(), rows, size, row_bytes, products, kSteps), memory.data(),
                   products, kSteps);
        EXPECT_EQ(all.shares, (rows + each - 1) / each);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t line = 0; line < size / kLine; ++line)
            ASSERT_TRUE(all.lines.contains(row * row_bytes / kLine + line)) << row << ", " << line;
      }
}

TEST(Prefetch, OfMoreRowsThanStepsTakesALinePerStep) {
  const std::vector<char> memory(1);
  const Prefetched all = all_of(Prefetch::of_rows(memory.data(), 100, 64, 256, 1, 16), memory.data(), 1, 16);
  EXPECT_EQ(all.shares, 1);
  EXPECT_EQ(all.lines.size(), 16);
}

TEST(Prefetch, AskedForMoreOrForNothingItReturnsNothing) {
  const char memory = 0, nothing = 0;
  Prefetch none, once = Prefetch::of_bytes(&memory, 64, 1, 64);
  EXPECT_EQ(none.next(&nothing).from, &nothing);
  EXPECT_EQ(once.next(&nothing).from, &memory);
  EXPECT_EQ(once.next(&nothing).from, &nothing);
}

}  // namespace
}  // namespace palimpsest::testing
