#include "palimpsest/memory/counting_allocator.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  palimpsest::memory::install_counting_allocator();  // before any tensor: tests of kept bytes read it
  // The tensors are small: handing them to a second thread takes up to ten times as long as the work on them,
  // where other tests have the cores. Tests of any number of threads ask for theirs.
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
