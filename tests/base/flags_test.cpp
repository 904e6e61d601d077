#include "palimpsest/base/compute_in_f32.h"
#include "palimpsest/base/recomputing.h"

#include <gtest/gtest.h>

#include <thread>

/// The two flags that layers share through base.
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

TEST(ComputeInF32, SettingItReturnsThePreviousValue) {
  EXPECT_FALSE(set_compute_in_f32(true));
  EXPECT_TRUE(compute_in_f32());
  std::thread([] { EXPECT_FALSE(compute_in_f32()) << "the flag of another thread"; }).join();
  EXPECT_TRUE(set_compute_in_f32(false));
  EXPECT_FALSE(compute_in_f32());
}

}  // namespace
}  // namespace palimpsest
