// CTest runs this program once per instruction set (PALIMPSEST_ISA). A set that was compiled but that this
// processor lacks is skipped, which 77 says; an unknown name still fails in the tests.
#include "palimpsest/kernels/cpu/dispatch.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

int main(int argc, char** argv) {
  const char* forced = std::getenv("PALIMPSEST_ISA");
  for (const auto& set : palimpsest::kernels::cpu::compiled_instruction_sets()) {
    if (forced && std::string_view(forced) == set.name && !set.runs_here()) {
      std::printf("skipped: this processor lacks %s\n", set.name);
      return 77;
    }
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
