// tests_instructions CALLS [CASE...]: calls each kernel CALLS times between two checkpoints, for
// scripts/check_instructions, which lets valgrind count the instructions there. (CALLS above 1 is a planted slowdown.)
// Prints the compiler, then one line per case: its values, a tab, its name. Without CASE all cases. Exit status: 0;
// 2 wrong usage; 77, with one line, if PALIMPSEST_ISA names a set that does not run here.
#include "palimpsest/kernels/cpu.h"
#include "tests/instructions/cases.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

/// Valgrind ends a count when this function is entered. Each case enters it before its calls and after them.
extern "C" [[gnu::noinline]] void instruction_checkpoint() {
  asm volatile("" ::: "memory");
}

namespace palimpsest::instructions {
namespace {

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto part : {abn_cases, max_pool_cases, upsampled_loss_cases, conv2d_cases, dense_block_cases,
                          gates_cases, exponent_histogram_cases})
    for (Case& one : part()) cases.push_back(std::move(one));
  return cases;
}

void count(const Case& one, int64_t calls) {
  const std::function<void()> call = one.prepare();
  call();  // Threads keep scratch memory from their first call on.
  instruction_checkpoint();
  for (int64_t i = 0; i < calls; ++i) call();
  instruction_checkpoint();
  std::printf("%lld\t%s\n", static_cast<long long>(one.values), one.name.c_str());
}

int usage(const std::string& why) {
  std::fprintf(stderr, "tests_instructions: usage: tests_instructions CALLS [CASE...]; %s\n", why.c_str());
  return 2;
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return usage("got no CALLS");
  const int64_t calls = std::atoll(arguments[0].c_str());
  if (calls < 1) return usage("CALLS is a whole number above 0, got '" + arguments[0] + "'");
  std::vector<Case> wanted, cases = all_cases();
  for (size_t i = 1; i < arguments.size(); ++i) {
    const auto found =
        std::find_if(cases.begin(), cases.end(), [&](const Case& one) { return one.name == arguments[i]; });
    if (found == cases.end()) return usage("there is no case '" + arguments[i] + "'");
    wanted.push_back(*found);
  }
  std::printf("%s\n", PALIMPSEST_COMPILER);
  for (const Case& one : arguments.size() > 1 ? wanted : cases) count(one, calls);
  return 0;
}

}  // namespace
}  // namespace palimpsest::instructions

int main(int argc, char** argv) {
  try {
    palimpsest::kernels::cpu::instruction_set();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 77;
  }
  return palimpsest::instructions::run({argv + 1, argv + argc});
}
