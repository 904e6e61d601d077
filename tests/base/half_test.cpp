#include "palimpsest/base/half.h"

#include <gtest/gtest.h>

#include <cmath>

namespace palimpsest {
namespace {

TEST(Half, EveryValueSurvivesTheWayThroughDouble) {
  for (int bits = 0; bits < 65536; ++bits) {
    Float16 f;
    BFloat16 b;
    f.bits = b.bits = static_cast<uint16_t>(bits);
    const auto as_double_f = static_cast<double>(f), as_double_b = static_cast<double>(b);
    if (!std::isnan(as_double_f)) {
      EXPECT_EQ(Float16(as_double_f).bits, f.bits);
    }
    if (!std::isnan(as_double_b)) {
      EXPECT_EQ(BFloat16(as_double_b).bits, b.bits);
    }
  }
}

template <class T>
void expect_rounded_between_all_neighbours(uint16_t infinity) {
  for (const uint16_t sign : {0, 0x8000}) {
    for (uint16_t size = 0; size + 1 < infinity; ++size) {
      T low, high;
      low.bits = sign | size;
      high.bits = sign | static_cast<uint16_t>(size + 1);
      const double middle = (static_cast<double>(low) + static_cast<double>(high)) / 2;
      EXPECT_EQ(T(middle).bits, size % 2 ? high.bits : low.bits);
      EXPECT_EQ(T(std::nextafter(middle, static_cast<double>(low))).bits, low.bits);
      EXPECT_EQ(T(std::nextafter(middle, static_cast<double>(high))).bits, high.bits);
    }
  }
}

TEST(Half, RoundsBetweenAllNeighbours) {
  expect_rounded_between_all_neighbours<Float16>(0x7c00);
  expect_rounded_between_all_neighbours<BFloat16>(0x7f80);
}

TEST(Half, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(static_cast<double>(Float16(1 + 0x1p-11)), 1);
  EXPECT_EQ(static_cast<double>(Float16(1 + 3 * 0x1p-11)), 1 + 0x1p-9);
  EXPECT_EQ(static_cast<double>(Float16(65519)), 65504);
  EXPECT_EQ(static_cast<double>(Float16(65520)), INFINITY);
  EXPECT_EQ(static_cast<double>(Float16(0x1p-25)), 0);
  EXPECT_EQ(static_cast<double>(Float16(1.5 * 0x1p-25)), 0x1p-24);
  EXPECT_EQ(static_cast<double>(BFloat16(1 + 0x1p-8)), 1);
  EXPECT_EQ(static_cast<double>(BFloat16(1 + 3 * 0x1p-8)), 1 + 0x1p-6);
  EXPECT_TRUE(std::isnan(static_cast<double>(Float16(NAN))) &&
              std::isnan(static_cast<double>(BFloat16(NAN))));
}

}  // namespace
}  // namespace palimpsest
