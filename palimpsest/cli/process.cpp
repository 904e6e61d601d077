#include "palimpsest/cli/process.h"

#include "palimpsest/base/error.h"
#include "palimpsest/cli/options.h"
#include "palimpsest/memory/counting_allocator.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

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

constexpr int64_t kUnsuspicious = 64;  // threads

/// Throws Error(kMemory) if the system does not start so many threads: OpenMP would end the program.
void check_threads(int64_t threads) {
  if (threads <= kUnsuspicious) return;
  // libtorch has OpenMP's threads and a pool of as many. The rest is room for what they allocate.
  const int64_t wanted = 2 * threads + threads / 4;
  std::latch end(1);
  std::vector<std::jthread> started;
  try {
    for (int64_t i = 1; i < wanted; ++i) started.emplace_back([&end] { end.wait(); });
    end.count_down();
  } catch (const std::system_error&) {
    end.count_down();
    throw Error(ErrorKind::kMemory,
                "[train] threads (--threads) must be at most what the system starts, which is " +
                    std::to_string((started.size() + 1) * 4 / 9) + ", got " + std::to_string(threads));
  }
}

/// Makes OpenMP start its threads now: later, tensors may have taken the room for their stacks.
void start_threads(int64_t threads) {
  constexpr int64_t kGrain = 32768;  // values of which libtorch gives each thread as many
  at::empty({threads * kGrain}, at::kByte).fill_(1);
}

}  // namespace

void apply_process_options(const Options& options) {
  check_threads(options.train.threads);
  if (options.train.threads > 0) at::set_num_threads(static_cast<int>(options.train.threads));
  if (options.train.threads > kUnsuspicious) start_threads(options.train.threads);
  memory::set_memory_limit(options.train.memory_limit * (int64_t{1} << 20));
}

const std::atomic<int>& install_stop_signals() {
  // While a matrix product that oneDNN compiled runs, the stack pointer points into an array on the heap. A
  // handler that used it would write over the heap. A stack belongs to one thread: the system gives a process's
  // signals to the main thread first.
  alignas(64) static std::array<std::byte, 1 << 16> handler_stack;
  const stack_t stack{.ss_sp = handler_stack.data(), .ss_flags = 0, .ss_size = handler_stack.size()};
  sigaltstack(&stack, nullptr);
  struct sigaction action{};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // a worker's read goes on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction hangup{};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // ignored: nohup asked for that
  return stop_signal;
}

std::string signal_name(int signal) {
  const char* abbreviation = sigabbrev_np(signal);  // "INT"
  const std::string number = "signal " + std::to_string(signal);
  return abbreviation ? number + " (SIG" + abbreviation + ")" : number;
}

void end_process(int exit_status) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(exit_status);
}

}  // namespace palimpsest::cli
