#include "palimpsest/cli/process.h"

#include "palimpsest/cli/options.h"
#include "palimpsest/memory/counting_allocator.h"

#include <ATen/Parallel.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace palimpsest::cli {
namespace {

std::atomic<int> stop_signal{0};

void on_stop_signal(int signal) {
  stop_signal = signal;
  // The next one, of any kind, ends the program at once.
  for (const int other : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction current{};
    if (sigaction(other, nullptr, &current) == 0 && current.sa_handler != SIG_IGN)
      std::signal(other, SIG_DFL);
  }
}

}  // namespace

void apply_process_options(const Options& options) {
  if (options.train.threads > 0) at::set_num_threads(static_cast<int>(options.train.threads));
  memory::set_memory_limit(options.train.memory_limit * (int64_t{1} << 20));
}

const std::atomic<int>& install_stop_signals() {
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;  // a worker's read goes on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup{};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // ignored: nohup asked for that
  return stop_signal;
}

void end_process(int exit_status) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(exit_status);
}

}  // namespace palimpsest::cli
