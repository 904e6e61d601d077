#include "palimpsest/memory/counting_allocator.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  palimpsest::memory::install_counting_allocator();  // before the first tensor
  // libtorch opens a parallel region for every group of an f64 convolution: with the cores shared by other
  // tests, 25 s on one thread are 135 s on two.
  at::set_num_threads(1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
