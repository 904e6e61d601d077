#include "palimpsest/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace palimpsest {
namespace {

TEST(Random, GivesThePublishedNumbers) {
  Random random(1234567);  // the values that the generator's authors' C code prints for this seed
  EXPECT_EQ(random.next(), 6457827717110365317ull);
  EXPECT_EQ(random.next(), 3203168211198807973ull);
  EXPECT_EQ(random.next(), 9817491932198370423ull);
}

TEST(Random, SkippingIsDrawingWithoutLooking) {
  Random skipped(42), drawn(42);
  skipped.skip(1000);
  for (int i = 0; i < 1000; ++i) drawn.uniform();
  EXPECT_EQ(skipped.next(), drawn.next());
}

TEST(Random, TheSameCoordinatesNameTheSameStreamAndOthersAnother) {
  EXPECT_EQ(Random::stream(7, 1, 2).next(), Random::stream(7, 1, 2).next());
  std::set<uint64_t> first;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (uint64_t a = 0; a < 10; ++a)
      for (uint64_t b = 0; b < 10; ++b) first.insert(Random::stream(seed, a, b).next());
  EXPECT_EQ(first.size(), 1000u);
}

TEST(Random, UniformFillsItsRangeEvenly) {
  Random random(1);
  constexpr int kDraws = 100000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, 5 * std::sqrt(1.0 / 12 / kDraws));  // 5 standard errors
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
  for (int i = 0; i < 1000; ++i) {
    const double u = random.uniform(-3, 5);
    ASSERT_GE(u, -3);
    ASSERT_LT(u, 5);
  }
}

TEST(Random, BelowReachesEveryValueEquallyOften) {
  Random random(2);
  constexpr int kBound = 7, kDraws = 70000;
  std::vector<int> counts(kBound);
  for (int i = 0; i < kDraws; ++i) {
    const int64_t value = random.below(kBound);
    ASSERT_GE(value, 0);
    ASSERT_LT(value, kBound);
    ++counts[static_cast<std::size_t>(value)];
  }
  for (const int count : counts) EXPECT_NEAR(count, kDraws / kBound, 5 * std::sqrt(kDraws / kBound));
}

}  // namespace
}  // namespace palimpsest
