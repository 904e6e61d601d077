#include "palimpsest/base/compute_in_f32.h"

#include <gtest/gtest.h>

#include <thread>

namespace palimpsest {
namespace {

TEST(ComputeInF32, SettingItReturnsThePreviousValue) {
  EXPECT_FALSE(set_compute_in_f32(true));
  EXPECT_TRUE(compute_in_f32());
  std::thread([] { EXPECT_FALSE(compute_in_f32()) << "the flag of another thread"; }).join();
  EXPECT_TRUE(set_compute_in_f32(false));
  EXPECT_FALSE(compute_in_f32());
}

}  // namespace
}  // namespace palimpsest
