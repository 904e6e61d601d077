#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/device_memory.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/timeline.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

// A program of its own: nothing here installs the allocator.
namespace palimpsest::memory {
namespace {

TEST(WithoutTheAllocator, NothingIsCounted) {
  EXPECT_FALSE(counting_allocator_installed());
  at::Tensor t = at::ones({1000});
  EXPECT_EQ(memory_stats().current_bytes, 0);
  EXPECT_EQ(memory_stats().allocations, 0);
}

TEST(WithoutTheAllocator, TheMachinesMemoryIsKnown) {
  std::ifstream info("/proc/meminfo");
  std::string name;
  int64_t kib = 0;
  ASSERT_TRUE(info >> name >> kib);
  ASSERT_EQ(name, "MemTotal:");
  EXPECT_LE(machine_bytes(), kib * 1024);
  EXPECT_GT(machine_bytes(), int64_t{64} << 20);
}

TEST(WithoutTheAllocator, MeasuringThrowsAndSaysHowToInstallIt) {
  try {
    Meter meter;
    FAIL();
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("install_counting_allocator"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(Timeline(), std::logic_error);
  EXPECT_THROW(reset_peak(), std::logic_error);
  EXPECT_THROW(set_memory_limit(1), std::logic_error);
  release_retained();  // nothing to release is no error
}

}  // namespace
}  // namespace palimpsest::memory
