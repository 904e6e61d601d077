#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

/// The place of this process in a run of several processes, as a launcher describes it in environment
/// variables.
namespace palimpsest::distributed {

/// A group has at most this many ranks; a larger number is a mistake.
inline constexpr int kMostRanks = 1 << 16;

/// One process of a run. The processes are called ranks; each rank has a number.
struct Launch {
  int rank = 0;                       ///< the number of this process, in [0, size)
  int size = 1;                       ///< processes of the run, on all machines
  int local_rank = 0;                 ///< the number of this process on its machine: the index of its GPU
  int local_size = 1;                 ///< processes on this machine
  std::string address = "127.0.0.1";  ///< host name or address where the ranks meet
  uint16_t port = 0;                  ///< TCP port there. 0: the system chooses one (Group::port tells)
  /// A store that outlives this process listens at address:port (torchrun's agent). false: rank 0 listens.
  bool agent_store = false;
  int restart = 0;                ///< how often the launcher has started the ranks again
  std::string run_id = {};        ///< the name of the run; ranks with other names do not meet
  std::string launcher = "none";  ///< "torchrun", "Slurm" or "none", for messages

  bool operator==(const Launch&) const = default;
};

/// Returns the value of an environment variable, or nothing.
using Lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads std::getenv. An empty variable counts as one that is not set.
std::optional<std::string> lookup_environment(const std::string& name);

/// Reads where the launcher has placed this process. Returns nothing if no launcher has started it: the
/// program runs alone.
///
/// torchrun, and every launcher that sets the same variables (a PyTorchJob of Kubernetes):
///   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT   all are required as soon as one of RANK, WORLD_SIZE,
///                                                LOCAL_RANK, LOCAL_WORLD_SIZE is set
///   LOCAL_RANK, LOCAL_WORLD_SIZE                 both or none; none: one process per machine
///   TORCHELASTIC_USE_AGENT_STORE, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_RUN_ID   optional
/// Slurm, in a task of srun, if none of the four is set:
///   SLURM_STEP_ID (or SLURM_STEPID) and SLURM_PROCID    both are set in tasks of srun only: a batch script
///                                                       or an salloc shell, with SLURM_NTASKS, runs alone
///   SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID
///   SLURM_STEP_TASKS_PER_NODE ("2(x3),1") with SLURM_NODEID, or SLURM_NTASKS_PER_NODE
///   MASTER_ADDR, else the first host of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST ("node[03-05,7],other-1")
///   MASTER_PORT, else a port from 20000 to 31999 that SLURM_JOB_ID and the step's number determine
///   SLURM_RESTART_COUNT                                 optional
/// Throws Error(kUsage) if variables are missing, contradict each other or cannot be read. The message names
/// the variable, its value and the way out.
std::optional<Launch> launch_from_environment(const Lookup& lookup = lookup_environment);

/// Returns the first host of a list in Slurm's form, "node03" for "node[03-05,7],other-1". Throws
/// Error(kUsage) if it cannot be read.
std::string first_slurm_host(const std::string& node_list);

}  // namespace palimpsest::distributed
