#include "palimpsest/cli/process.h"

#include "palimpsest/base/error.h"
#include "palimpsest/cli/options.h"
#include "palimpsest/memory/counting_allocator.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <csignal>
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
std::atomic<bool> stops_are_polled{false};

/// Returns SIGINT, SIGTERM and SIGHUP, but not an ignored SIGHUP: nohup asked for that.
sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction present{};
    sigaction(signal, nullptr, &present);
    if (signal != SIGHUP || present.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  return signals;
}

int next_of(const sigset_t& signals) {
  int signal = 0;
  while (sigwait(&signals, &signal) != 0) {
  }
  return signal;
}

void raise_by_default(int signal) {
  std::signal(signal, SIG_DFL);
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  std::raise(signal);
}

/// Notes the first signal. Lets any other end the program.
void wait_for(const sigset_t& signals) {
  int signal = next_of(signals);
  if (stops_are_polled) {
    stop_signal = signal;
    // Polling may have ended in between (end_at_stop_signals).
    if (!stops_are_polled && stop_signal.exchange(0) != 0) raise_by_default(signal);
    signal = next_of(signals);
  }
  raise_by_default(signal);
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
  const int64_t threads = options.train.threads > 0 ? options.train.threads : options.run.threads;
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  if (options.train.threads > kUnsuspicious) start_threads(options.train.threads);
  memory::set_memory_limit(options.train.memory_limit * (int64_t{1} << 20));
}

void hold_stop_signals() {
  static const bool is_held = [] {
    const sigset_t signals = stop_signals();
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // threads take it over from the thread that starts them
    std::thread([signals] { wait_for(signals); }).detach();
    return true;
  }();
  static_cast<void>(is_held);
}

const std::atomic<int>& poll_stop_signals() {
  hold_stop_signals();
  stops_are_polled = true;
  return stop_signal;
}

void end_at_stop_signals() {
  stops_are_polled = false;
  const int signal = stop_signal.exchange(0);
  if (signal != 0) raise_by_default(signal);
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
