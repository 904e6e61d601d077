#include "palimpsest/base/recomputing.h"

#include <gtest/gtest.h>

#include <thread>

namespace palimpsest {
namespace {

TEST(Recomputing, ScopesNest) {
  {
    const RecomputingGuard outer;
    {
      const RecomputingGuard inner;
      EXPECT_TRUE(recomputing());
    }
    EXPECT_TRUE(recomputing());
  }
  EXPECT_FALSE(recomputing());
}

TEST(Recomputing, BelongsToOneThread) {
  const RecomputingGuard guard;
  std::thread([] { EXPECT_FALSE(recomputing()); }).join();
}

}  // namespace
}  // namespace palimpsest
