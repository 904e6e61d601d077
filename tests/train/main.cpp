#include "palimpsest/memory/counting_allocator.h"

#include <gtest/gtest.h>

#include <csignal>

int main(int argc, char** argv) {
  palimpsest::memory::install_counting_allocator();  // first: the trainer measures, and the limit is tested
  std::signal(SIGXFSZ, SIG_IGN);  // "disk full" is tested with RLIMIT_FSIZE: a write must fail, not kill
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
