#include "palimpsest/cli/process.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstddef>

namespace palimpsest::cli {
namespace {

const std::byte* address_in_handler = nullptr;

void note_address(int) {
  std::byte local{};
  address_in_handler = &local;
}

// oneDNN's compiled matrix products use the stack pointer for an array on the heap.
TEST(StopSignals, AreHandledOnAStackOfTheirOwn) {
  const auto& stop_signal = install_stop_signals();
  stack_t stack{};
  ASSERT_EQ(sigaltstack(nullptr, &stack), 0);
  ASSERT_EQ(stack.ss_flags & SS_DISABLE, 0);
  const auto* begin = static_cast<const std::byte*>(stack.ss_sp);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction ours{};
    ASSERT_EQ(sigaction(signal, nullptr, &ours), 0);
    struct sigaction spy = ours;
    spy.sa_handler = note_address;
    ASSERT_EQ(sigaction(signal, &spy, nullptr), 0);
    address_in_handler = nullptr;
    std::raise(signal);
    EXPECT_GE(address_in_handler, begin);
    EXPECT_LT(address_in_handler, begin + stack.ss_size);
    sigaction(signal, &ours, nullptr);
  }
  std::raise(SIGTERM);
  EXPECT_EQ(stop_signal.load(), SIGTERM);
}

}  // namespace
}  // namespace palimpsest::cli
