// The main function of every test program.
#include "tests/support/main.h"

#include <gtest/gtest.h>

int main(int argc, char** argv) {
  for (const auto preparation : palimpsest::testing::preparations())
    if (const int status = preparation()) return status;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
