#include "palimpsest/cli/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace palimpsest::cli {
namespace {

TEST(StopSignals, InterruptNoThreadThatComputes) {
  hold_stop_signals();
  const auto& stop_signal = poll_stop_signals();
  const auto expect_blocked = [] {
    sigset_t blocked;
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
    for (const int signal : {SIGINT, SIGTERM}) EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  };
  expect_blocked();
  std::thread(expect_blocked).join();
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  for (int i = 0; i < 1000 && stop_signal == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(stop_signal.load(), SIGTERM);
}

}  // namespace
}  // namespace palimpsest::cli
