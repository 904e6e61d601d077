#include "palimpsest/memory/counting_allocator.h"

#include <gtest/gtest.h>

// As every program that measures: the allocator first, before any tensor. Twice, because a second call does
// nothing.
int main(int argc, char** argv) {
  palimpsest::memory::install_counting_allocator();
  palimpsest::memory::install_counting_allocator();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
