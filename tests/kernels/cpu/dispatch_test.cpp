#include "palimpsest/kernels/cpu/dispatch.h"

#include "palimpsest/kernels/cpu.h"
#include "tests/support/main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

namespace palimpsest::testing {
namespace {

using kernels::cpu::compiled_instruction_sets;
using kernels::cpu::find_instruction_set;
using kernels::cpu::InstructionSet;

// CTest runs this program once per instruction set (PALIMPSEST_ISA), and takes an exit status of 77 as
// "skipped": the set was compiled, but this processor lacks it. An unknown name fails in the tests.
const Prepare kSkipAMissingSet{[] {
  const char* forced = std::getenv("PALIMPSEST_ISA");
  for (const InstructionSet& set : compiled_instruction_sets()) {
    if (forced && std::string_view(forced) == set.name && !set.runs_here()) {
      std::printf("skipped: this processor lacks %s\n", set.name);
      return 77;
    }
  }
  return 0;
}};

TEST(InstructionSet, AnUnknownNameIsAnErrorThatListsWhatRunsHere) {
  try {
    find_instruction_set("x86-64-v9");
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("'x86-64-v9'"), std::string::npos) << message;
    for (const InstructionSet& set : compiled_instruction_sets())
      EXPECT_EQ(message.find(set.name) != std::string::npos, set.runs_here())
          << set.name << " in: " << message;
  }
}

TEST(InstructionSet, ASetThatThisProcessorLacksIsAnError) {
  for (const InstructionSet& set : compiled_instruction_sets()) {
    if (set.runs_here())
      EXPECT_EQ(find_instruction_set(set.name).name, std::string(set.name));
    else
      EXPECT_THROW(find_instruction_set(set.name), std::invalid_argument);
  }
}

TEST(InstructionSet, WithoutANameTheBestOneThatRunsHereIsTaken) {
  for (const InstructionSet& set : compiled_instruction_sets()) {
    if (!set.runs_here()) continue;
    EXPECT_STREQ(find_instruction_set(nullptr).name, set.name);
    EXPECT_STREQ(find_instruction_set("").name, set.name);
    break;
  }
}

TEST(InstructionSet, TheEnvironmentDecidesWhichOneIsInUse) {
  EXPECT_STREQ(kernels::cpu::instruction_set(), find_instruction_set(std::getenv("PALIMPSEST_ISA")).name);
}

}  // namespace
}  // namespace palimpsest::testing
