#include "palimpsest/memory/counting_allocator.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  palimpsest::memory::install_counting_allocator();  // before the first tensor
  // Small tensors: waking threads takes longer than the work, the more so beside other tests.
  at::set_num_threads(1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
