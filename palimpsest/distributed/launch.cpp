#include "palimpsest/distributed/launch.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <vector>

namespace palimpsest::distributed {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kUsage, "[launch] " + message);
}

std::string quoted(const std::string& text) {
  return "'" + printable(text) + "'";
}

/// Reads the variables of one launcher.
class Variables {
 public:
  Variables(const Lookup& lookup, std::string way_out) : lookup_(lookup), way_out_(std::move(way_out)) {}

  std::optional<std::string> find(const std::string& name) const {
    auto value = lookup_(name);
    if (value && value->empty()) value.reset();
    return value;
  }
  bool has(const std::string& name) const { return find(name).has_value(); }

  /// Returns the name of the first variable that is set; the first name if none is.
  std::string first_of(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (has(name)) return name;
    return *names.begin();
  }

  std::string text(const std::string& name) const {
    if (auto value = find(name)) return *value;
    refuse(fmt::format("{} must be set: {}", name, way_out_));
  }

  int number(const std::string& name, int lowest, int highest = std::numeric_limits<int>::max()) const {
    return parsed(name, text(name), lowest, highest);
  }
  int number_or(const std::string& name, int otherwise) const {
    return has(name) ? number(name, 0) : otherwise;
  }

  int parsed(const std::string& name, const std::string& value, int lowest, int highest) const {
    int number = 0;
    const char* end = value.data() + value.size();
    const auto [stop, failure] = std::from_chars(value.data(), end, number);
    if (failure != std::errc() || stop != end || number < lowest || number > highest)
      refuse(fmt::format("{} must be a whole number {}, got {}: {}", name,
                         highest == std::numeric_limits<int>::max()
                             ? fmt::format("of at least {}", lowest)
                             : fmt::format("from {} to {}", lowest, highest),
                         quoted(value), way_out_));
    return number;
  }

  const std::string& way_out() const { return way_out_; }

 private:
  const Lookup& lookup_;
  std::string way_out_;
};

void check_below(const Variables& variables, const std::string& name, int value,
                 const std::string& limit_name, int limit) {
  if (value >= limit)
    refuse(fmt::format("{} must be below {}, got {} and {}: {}", name, limit_name, value, limit,
                       variables.way_out()));
}

void check_local(const Variables& variables, const Launch& launch, const std::string& rank_name,
                 const std::string& size_name) {
  check_below(variables, rank_name, launch.local_rank, size_name, launch.local_size);
  if (launch.local_size > launch.size)
    refuse(fmt::format("{} must be at most the number of ranks, got {} and {}: {}", size_name,
                       launch.local_size, launch.size, variables.way_out()));
  if (launch.local_rank > launch.rank)
    refuse(fmt::format("{} must be at most the rank, got {} and rank {}: {}", rank_name, launch.local_rank,
                       launch.rank, variables.way_out()));
}

bool truth(const Variables& variables, const std::string& name) {
  const auto value = variables.find(name);
  if (!value || *value == "False" || *value == "false" || *value == "0") return false;
  if (*value == "True" || *value == "true" || *value == "1") return true;
  refuse(fmt::format("{} must be True or False, got {}: {}", name, quoted(*value), variables.way_out()));
}

Launch from_torchrun(const Variables& variables) {
  Launch launch;
  launch.launcher = variables.has("TORCHELASTIC_RUN_ID") ? "torchrun" : "a launcher";
  launch.size = variables.number("WORLD_SIZE", 1, kMostRanks);
  launch.rank = variables.number("RANK", 0);
  check_below(variables, "RANK", launch.rank, "WORLD_SIZE", launch.size);
  if (variables.has("LOCAL_RANK") || variables.has("LOCAL_WORLD_SIZE")) {
    launch.local_size = variables.number("LOCAL_WORLD_SIZE", 1);
    launch.local_rank = variables.number("LOCAL_RANK", 0);
    check_local(variables, launch, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  }
  launch.address = variables.text("MASTER_ADDR");
  launch.port = static_cast<uint16_t>(variables.number("MASTER_PORT", 1, 65535));
  launch.agent_store = truth(variables, "TORCHELASTIC_USE_AGENT_STORE");
  launch.restart = variables.number_or("TORCHELASTIC_RESTART_COUNT", 0);
  launch.run_id = variables.find("TORCHELASTIC_RUN_ID").value_or("");
  return launch;
}

/// Returns the entry of a list like "2(x3),1" that belongs to node `node`: 2 for nodes 0 to 2, 1 for node 3.
int tasks_of_node(const Variables& variables, const std::string& name, int node) {
  const std::string list = variables.text(name);
  const auto unreadable = [&] {
    refuse(fmt::format("{} must be like '2(x3),1' and have an entry for node {}, got {}: {}", name, node,
                       quoted(list), variables.way_out()));
  };
  int next = 0;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    std::string entry = list.substr(begin, end - begin);
    int times = 1;
    if (const auto open = entry.find("(x"); open != std::string::npos) {
      if (entry.back() != ')') unreadable();
      times = variables.parsed(name, entry.substr(open + 2, entry.size() - open - 3), 1, 1 << 24);
      entry.resize(open);
    }
    const int tasks = variables.parsed(name, entry, 1, 1 << 24);
    next += times;
    if (node < next) return tasks;
    begin = end + 1;
  }
  unreadable();
  return 0;
}

Launch from_slurm(const Variables& variables) {
  Launch launch;
  launch.launcher = "Slurm";
  const std::string size_name = variables.first_of({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
  launch.size = variables.number(size_name, 1, kMostRanks);
  launch.rank = variables.number("SLURM_PROCID", 0);
  check_below(variables, "SLURM_PROCID", launch.rank, size_name, launch.size);
  launch.local_rank = variables.number("SLURM_LOCALID", 0);
  const std::string per_node = variables.first_of({"SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"});
  launch.local_size = per_node == "SLURM_STEP_TASKS_PER_NODE"
                          ? tasks_of_node(variables, per_node, variables.number_or("SLURM_NODEID", 0))
                          : variables.number(per_node, 1);
  check_local(variables, launch, "SLURM_LOCALID", per_node);
  launch.address = variables.has("MASTER_ADDR") ? variables.text("MASTER_ADDR")
                                                : first_slurm_host(variables.text(variables.first_of(
                                                      {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})));
  const std::string step_name = variables.first_of({"SLURM_STEP_ID", "SLURM_STEPID"});
  if (variables.has("MASTER_PORT")) {
    launch.port = static_cast<uint16_t>(variables.number("MASTER_PORT", 1, 65535));
  } else {
    // Below Linux's ephemeral ports (32768 and up). 600 jobs with 20 steps each have ports of their own.
    const int job = variables.number("SLURM_JOB_ID", 0);
    launch.port = static_cast<uint16_t>(20000 + job % 600 * 20 + variables.number(step_name, 0) % 20);
  }
  launch.restart = variables.number_or("SLURM_RESTART_COUNT", 0);
  launch.run_id = variables.find("SLURM_JOB_ID").value_or("") + "." + variables.text(step_name);
  return launch;
}

}  // namespace

std::optional<std::string> lookup_environment(const std::string& name) {
  const char* value =
      std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): nothing here sets variables
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::optional<Launch> launch_from_environment(const Lookup& lookup) {
  const Variables torchrun(lookup,
                           "start the program with torchrun, or unset RANK, WORLD_SIZE, LOCAL_RANK and "
                           "LOCAL_WORLD_SIZE to run alone");
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
    if (torchrun.has(name)) return from_torchrun(torchrun);
  const Variables slurm(lookup, "start the program with srun, or unset SLURM_PROCID to run alone");
  if ((slurm.has("SLURM_STEP_ID") || slurm.has("SLURM_STEPID")) && slurm.has("SLURM_PROCID"))
    return from_slurm(slurm);
  return std::nullopt;
}

std::string first_slurm_host(const std::string& node_list) {
  const auto unreadable = [&]() -> std::string {
    refuse(
        fmt::format("the node list must be like 'node[03-05,7],other-1', got {}: set MASTER_ADDR to the "
                    "first host",
                    quoted(node_list)));
  };
  std::string host;
  for (std::size_t i = 0; i < node_list.size(); ++i) {
    const char c = node_list[i];
    if (c == ',') break;
    if (c != '[') {
      if (c == ']') return unreadable();
      host += c;
      continue;
    }
    // "[03-05,7]" names many; the first number, with its zeros, belongs to the first host.
    const std::size_t close = node_list.find(']', i);
    if (close == std::string::npos) return unreadable();
    const std::string inside = node_list.substr(i + 1, close - i - 1);
    const std::string first = inside.substr(0, inside.find_first_of("-,"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string::npos) return unreadable();
    host += first;
    i = close;
  }
  return host.empty() ? unreadable() : host;
}

}  // namespace palimpsest::distributed
