#include "palimpsest/base/shape.h"

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Shape3, CountsValuesPerChannelAndInAll) {
  constexpr Shape3 shape{2, 3, 20};
  EXPECT_EQ(shape.per_channel(), 40);
  EXPECT_EQ(shape.elements(), 120);
}

}  // namespace
}  // namespace palimpsest
