#include "palimpsest/cli/process.h"

#include "palimpsest/base/error.h"
#include "palimpsest/cli/options.h"
#include "palimpsest/cli/processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <string>
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

distributed::Launch two_of(int size, int local_size) {
  distributed::Launch launch;
  launch.rank = launch.local_rank = 1;
  launch.size = size;
  launch.local_size = local_size;
  launch.launcher = "torchrun";
  return launch;
}

TEST(Processes, ShareTheProcessorsOfTheirMachine) {
  const auto threads = [](int local_size, int64_t processors, const std::map<std::string, std::string>& set) {
    return threads_per_process(two_of(8, local_size), processors, [&](const std::string& name) {
      const auto found = set.find(name);
      return found == set.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_EQ(threads(4, 16, {}), 4);
  EXPECT_EQ(threads(3, 16, {}), 5);
  EXPECT_EQ(threads(8, 2, {}), 1);
  EXPECT_EQ(threads(4, 16, {{"OMP_NUM_THREADS", "1"}}), 4) << "torchrun sets it";
  EXPECT_EQ(threads(4, 16, {{"OMP_NUM_THREADS", "2"}}), 0) << "the user's number counts";
  EXPECT_EQ(threads(4, 16, {{"OMP_NUM_THREADS", "many"}}), 4);
  EXPECT_EQ(threads(4, 8, {{"SLURM_CPUS_PER_TASK", "8"}}), 8) << "a task has processors of its own";
  EXPECT_EQ(threads(4, 8, {{"SLURM_CPUS_PER_TASK", "12"}}), 8);
}

TEST(Processes, OtherThanTheFirstAreQuietAndOneAloneIsAsWithoutALauncher) {
  Options options;
  place(options, two_of(4, 4));
  ASSERT_TRUE(options.run.launch);
  EXPECT_EQ(options.run.launch->rank, 1);
  EXPECT_TRUE(options.output.quiet);
  EXPECT_EQ(options.run.device, "cpu");
  Options alone;
  distributed::Launch one;
  place(alone, one);
  EXPECT_FALSE(alone.run.launch);
  EXPECT_EQ(alone.run.threads, 0);
  EXPECT_EQ(connect(alone), nullptr);
  EXPECT_EQ(run_together(nullptr, [] { return 7; }), 7);
}

TEST(Processes, ThatCannotShareTheirWorkAreAUsageError) {
  Options options;
  options.train.batch = 3;
  EXPECT_THROW(place(options, two_of(4, 4)), Error);
  options.train.batch = 4;
  EXPECT_NO_THROW(place(options, two_of(4, 4)));
  for (const Command command : {Command::kCompare, Command::kDemo, Command::kPredict, Command::kInfo,
                                Command::kImport, Command::kExport}) {
    options.run.command = command;
    EXPECT_THROW(place(options, two_of(4, 4)), Error);
  }
}

}  // namespace
}  // namespace palimpsest::cli
