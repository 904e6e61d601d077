#pragma once

#include "palimpsest/cli/options.h"
#include "palimpsest/distributed/process_group.h"

#include <cstdint>
#include <functional>
#include <memory>

// The several processes of one run, which a launcher such as torchrun has started.
namespace palimpsest::cli {

/// Completes the options of one of several processes: its place, its GPU and its number of threads. Processes
/// other than the first become quiet. Does nothing for a run of one process. Throws Error(kUsage) for a
/// command that does not share its work, for a batch with fewer images than processes, and as
/// train::device_of_process does.
void place(Options& options, const distributed::Launch& launch);

/// Returns the number of threads with which the processes of a machine use each processor once: those that
/// this process may use, divided by the processes on the machine; SLURM_CPUS_PER_TASK if that is set. 0 if
/// the user has chosen a number: OMP_NUM_THREADS above 1 (torchrun sets 1).
int64_t threads_per_process(const distributed::Launch& launch, int64_t processors,
                            const distributed::Lookup& lookup = distributed::lookup_environment);

/// Connects the processes. Returns null for a run of one process. Throws as distributed::Group does:
/// Error(kUsage) within a second if the processes were started with different settings of the run.
std::unique_ptr<distributed::Group> connect(const Options& options);

/// Returns command(). If it throws in a run of several processes, the others are told and end, too: one line
/// on standard error says which process failed, and why. Returns the exit status then: that of the first
/// error.
int run_together(distributed::Group* group, const std::function<int()>& command);

/// Says how many processes there are and how many threads each of them has.
void tell_processes(const Options& options);

}  // namespace palimpsest::cli
