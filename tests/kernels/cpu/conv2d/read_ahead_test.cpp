#include "palimpsest/kernels/cpu/conv2d/read_ahead.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <vector>

namespace palimpsest::testing {
namespace {

using kernels::cpu::conv2d::Prefetch;
using kernels::cpu::conv2d::ReadAhead;

constexpr int64_t kLine = 64;

/// The cache lines, counted from `memory`, that so many products of so many steps prefetch, as matrix_kernels.cpp does;
/// without those of `nothing`.
std::set<int64_t> lines_of(Prefetch prefetch, const char* memory, int64_t products, int64_t steps) {
  const char nothing = 0;
  std::set<int64_t> lines;
  for (int64_t product = 0; product < products; ++product) {
    const ReadAhead ahead = prefetch.next(&nothing);
    if (ahead.from == &nothing) {
      EXPECT_EQ(ahead.step, 0);
      continue;
    }
    for (int64_t k = 0; k < steps; ++k)
      lines.insert((static_cast<const char*>(ahead.from) - memory + k / ahead.row_steps * ahead.row_bytes +
                    k % ahead.row_steps * ahead.step) /
                   kLine);
  }
  return lines;
}

TEST(Prefetch, OfBytesReachesEachLineInSharesOfAllProducts) {
  const std::vector<char> memory(1);  // whose address is only compared
  for (const int64_t products : {1, 2, 3, 12, 96})
    for (const int64_t steps : {16, 64, 100, 256})
      for (const int64_t bytes : {int64_t{64}, int64_t{640}, products * steps * 3, products * steps * 16,
                                  products * steps * kLine}) {
        const auto lines = lines_of(Prefetch::of_bytes(memory.data(), bytes, products, steps), memory.data(),
                                    products, steps);
        const int64_t want = (bytes + kLine - 1) / kLine;
        if (bytes > products * steps * kLine) continue;  // more lines than steps
        for (int64_t line = 0; line < want; ++line)
          ASSERT_TRUE(lines.contains(line))
              << line << " of " << bytes << " bytes, " << products << "x" << steps;
        EXPECT_LE(*lines.rbegin(), want + steps) << bytes;  // the last share may reach past the end
      }
}

TEST(Prefetch, OfRowsReachesEachLineOfEachRow) {
  const std::vector<char> memory(1);
  for (const int64_t products : {1, 2, 7, 256, 300})
    for (const int64_t rows : {1, 49, 256})
      for (const int64_t size : {64, 256, 1024}) {
        constexpr int64_t kSteps = 256;
        const int64_t row_bytes = 4 * size, each = (rows + products - 1) / products;
        if (each * size / kLine > kSteps / 2) continue;  // more lines than steps
        const auto lines = lines_of(Prefetch::of_rows(memory.data(), rows, size, row_bytes, products, kSteps),
                                    memory.data(), products, kSteps);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t line = 0; line < size / kLine; ++line)
            ASSERT_TRUE(lines.contains(row * row_bytes / kLine + line))
                << row << " of " << rows << ", " << size;
      }
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
