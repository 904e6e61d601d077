#include "palimpsest/memory/counting_allocator.h"

#include <gtest/gtest.h>

// The allocator first, before any tensor: tests of kept bytes read it.
int main(int argc, char** argv) {
  palimpsest::memory::install_counting_allocator();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
