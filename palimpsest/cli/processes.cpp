#include "palimpsest/cli/processes.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/command_line.h"
#include "palimpsest/cli/exit_status.h"
#include "palimpsest/cli/process.h"
#include "palimpsest/cli/settings.h"
#include "palimpsest/train/device.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <optional>
#include <string>

namespace palimpsest::cli {
namespace {

/// Returns the processors that this process may use.
int64_t available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // It fails on a machine with more than 1,024 processors, whose owner sets --threads.
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

int64_t whole_number(const std::optional<std::string>& text) {
  int64_t value = 0;
  if (text) std::from_chars(text->data(), text->data() + text->size(), value);
  return value;
}

/// Returns the settings that must be equal in all processes. Folders of the images may differ from machine to
/// machine. Classes are compared when the data has been read.
std::string identity(const Options& options) {
  Options same = options;
  same.data.root.clear();
  same.model.classes = 0;
  same.model.class_names.clear();
  const bool cpu = train::parse_device(options.run.device).is_cpu();
  return fmt::format("command {}\n{}--device {}\n", to_string(options.run.command),
                     to_toml(same, Scope::kRun), cpu ? "cpu" : "cuda");
}

/// c10d prints a stack trace for each attempt that fails; our errors say what failed. TORCH_CPP_LOG_LEVEL shows
/// them again.
void quieten_c10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL"))  // NOLINT(concurrency-mt-unsafe)
    c10::initLogging();
  else
    FLAGS_caffe2_log_level = c10::GLOG_FATAL;
}

}  // namespace

int64_t threads_per_process(const distributed::Launch& launch, int64_t processors,
                            const distributed::Lookup& lookup) {
  if (whole_number(lookup("OMP_NUM_THREADS")) > 1) return 0;
  if (const int64_t task = whole_number(lookup("SLURM_CPUS_PER_TASK")); task > 0)
    return std::min(task, processors);
  return std::max<int64_t>(processors / launch.local_size, 1);
}

void place(Options& options, const distributed::Launch& launch) {
  if (launch.size == 1) return;
  const Command command = options.run.command;
  if (command != Command::kTrain && command != Command::kEval)
    throw Error(ErrorKind::kUsage,
                fmt::format("{} runs in one process, but {} has started {}: call it without {}",
                            to_string(command), launch.launcher, launch.size, launch.launcher));
  if (command == Command::kTrain && options.train.batch < launch.size)
    throw Error(
        ErrorKind::kUsage,
        fmt::format(
            "{} must have at least one image for each of the {} processes, got {}: use a larger batch "
            "or fewer processes",
            both_names(setting("train.batch")), launch.size, options.train.batch));
  options.run.launch = launch;
  options.run.device = train::device_of_process(options.run.device, launch.local_rank);
  options.run.threads = threads_per_process(launch, available_processors());
  if (launch.rank > 0) options.output.quiet = true;
}

std::unique_ptr<distributed::Group> connect(const Options& options) {
  if (!options.run.launch) return nullptr;
  quieten_c10d();
  distributed::GroupOptions group;
  group.timeout = std::chrono::seconds(options.run.timeout);
  group.identity = identity(options);
  const std::atomic<int>* stop_signal = nullptr;
  if (options.run.command == Command::kTrain) {
    stop_signal = &poll_stop_signals();
    group.gives_up = [stop_signal] { return stop_signal->load() != 0; };
  }
  try {
    auto connected = std::make_unique<distributed::Group>(*options.run.launch, group);
    if (stop_signal) end_at_stop_signals();  // until training polls them again
    return connected;
  } catch (const Error& error) {
    if (stop_signal && stop_signal->load() != 0) {
      std::cerr << "palimpsest: " << signal_name(stop_signal->load()) << ": " << printable(error.what())
                << std::endl;
      end_process(128 + stop_signal->load());
    }
    if (error.kind() != ErrorKind::kUsage || !(options.run.resume || options.run.resume_if_possible)) throw;
    throw Error(
        error.kind(),
        fmt::format("{}; with {} each process takes the settings of the run in its output folder: let "
                    "all see the same folder, or give all the same settings",
                    error.what(), options.run.resume_if_possible ? "--resume-if-possible" : "--resume"));
  }
}

int run_together(distributed::Group* group, const std::function<int()>& command) {
  if (!group) return command();
  try {
    return command();
  } catch (...) {
    const ExitStatus own = exit_status_of(std::current_exception());
    const std::string name = fmt::format("rank {} of {}", group->rank(), group->size());
    std::cout.flush();
    if (const auto fault = group->fault()) {
      // The rank with an error of its own says it, too. Of a rank that is gone only the others can tell.
      const std::string line = printable(fault->what());
      std::cerr << (fault->kind() == ErrorKind::kPeer ? "palimpsest: error: "
                                                      : "palimpsest: " + name + " ends: ")
                << line << std::endl;
      return fault->exit_code();
    }
    // The loss is that of all ranks: it is not finite on all of them, and rank 0 says so.
    if (own.code == static_cast<int>(ErrorKind::kDiverged) && group->rank() > 0) return own.code;
    group->fail(own.message, static_cast<ErrorKind>(own.code));
    std::cerr << "palimpsest: error: " << name << ": " << own.message << std::endl;
    return own.code;
  }
}

void tell_processes(const Options& options) {
  const distributed::Launch& launch = *options.run.launch;
  const int threads = at::get_num_threads();
  std::cerr << fmt::format("palimpsest: {} processes ({}), {} on this machine, {} each", launch.size,
                           launch.launcher, launch.local_size, counted(threads, "thread"))
            << std::endl;
}

}  // namespace palimpsest::cli
