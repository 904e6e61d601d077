#include "palimpsest/distributed/launch.h"
#include "tests/support/expect_error.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace palimpsest::distributed {
namespace {

using palimpsest::testing::expect_error;
using Variables = std::map<std::string, std::string>;

std::optional<Launch> launch_of(const Variables& variables) {
  return launch_from_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    variables.erase(name);
    if (value != "-") variables[name] = value;
  }
  return variables;
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node-1"},
                          {"MASTER_PORT", "29400"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                          {"TORCHELASTIC_RUN_ID", "job7"}};

const Variables kSrun{{"SLURM_JOB_ID", "1234"},
                      {"SLURM_STEP_ID", "3"},
                      {"SLURM_PROCID", "6"},
                      {"SLURM_NTASKS", "8"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "3"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1,1"},
                      {"SLURM_STEP_NODELIST", "node[03-05,7],other-1"}};

TEST(LaunchFromEnvironment, RunsAloneWithoutALauncher) {
  EXPECT_FALSE(launch_of({}));
  EXPECT_FALSE(launch_of({{"RANK", ""}, {"WORLD_SIZE", ""}}));
  EXPECT_FALSE(launch_of({{"MASTER_ADDR", "node-1"}, {"MASTER_PORT", "29500"}}));
}

TEST(LaunchFromEnvironment, RunsAloneInABatchScriptAndInAnAllocationOfSlurm) {
  EXPECT_FALSE(launch_of({{"SLURM_NTASKS", "1"}, {"SLURM_JOB_ID", "12"}}));
  EXPECT_FALSE(launch_of({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "12"}, {"SLURM_PROCID", "0"}}));
}

TEST(LaunchFromEnvironment, ReadsTorchrunsVariables) {
  const Launch want{.rank = 5,
                    .size = 8,
                    .local_rank = 1,
                    .local_size = 4,
                    .address = "node-1",
                    .port = 29400,
                    .agent_store = true,
                    .restart = 2,
                    .run_id = "job7",
                    .launcher = "torchrun"};
  EXPECT_EQ(launch_of(kTorchrun), want);
  EXPECT_EQ(launch_of(with(kSrun, kTorchrun)), want) << "torchrun was started by srun";
}

TEST(LaunchFromEnvironment, TakesOneProcessPerMachineWithoutLocalVariables) {
  const auto launch = launch_of(with(kTorchrun, {{"LOCAL_RANK", "-"},
                                                 {"LOCAL_WORLD_SIZE", "-"},
                                                 {"TORCHELASTIC_USE_AGENT_STORE", "-"},
                                                 {"TORCHELASTIC_RESTART_COUNT", "-"},
                                                 {"TORCHELASTIC_RUN_ID", "-"}}));
  ASSERT_TRUE(launch);
  EXPECT_EQ(launch->local_rank, 0);
  EXPECT_EQ(launch->local_size, 1);
  EXPECT_FALSE(launch->agent_store);
}

TEST(LaunchFromEnvironment, RefusesWhatItCannotUseAndNamesTheVariable) {
  const auto refuses = [](const Variables& changes, const std::vector<std::string>& parts) {
    SCOPED_TRACE(changes.begin()->first + "=" + changes.begin()->second);
    expect_error(ErrorKind::kUsage, parts, [&] { launch_of(with(kTorchrun, changes)); });
  };
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    refuses({{name, "-"}}, {name, "must be set", "torchrun", "unset"});
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"})
    for (const char* value : {"two", "3x", "-1", "99999999999", "1.5", " 1"})
      refuses({{name, value}}, {name, std::string("'") + value + "'", "torchrun"});
  refuses({{"RANK", "8"}}, {"RANK", "WORLD_SIZE", "8"});
  refuses({{"WORLD_SIZE", "0"}}, {"WORLD_SIZE", "from 1 to 65536", "'0'"});
  refuses({{"LOCAL_RANK", "4"}}, {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "4"});
  refuses({{"LOCAL_WORLD_SIZE", "9"}}, {"LOCAL_WORLD_SIZE", "9", "8"});
  refuses({{"RANK", "0"}}, {"LOCAL_RANK", "1", "rank 0"});
  refuses({{"MASTER_PORT", "65536"}}, {"MASTER_PORT", "1 to 65535", "'65536'"});
  refuses({{"MASTER_PORT", "0"}}, {"MASTER_PORT"});
  refuses({{"TORCHELASTIC_USE_AGENT_STORE", "yes"}},
          {"TORCHELASTIC_USE_AGENT_STORE", "True or False", "'yes'"});
  refuses({{"RANK", "1\n2"}}, {"RANK"});
  expect_error(ErrorKind::kUsage, {"WORLD_SIZE", "must be set"}, [] { launch_of({{"LOCAL_RANK", "0"}}); });
}

TEST(LaunchFromEnvironment, ReadsSlurmsVariablesUnderSrun) {
  const auto launch = launch_of(kSrun);
  ASSERT_TRUE(launch);
  const Launch want{.rank = 6,
                    .size = 8,
                    .local_rank = 0,
                    .local_size = 1,
                    .address = "node03",
                    .port = static_cast<uint16_t>(20000 + 1234 % 600 * 20 + 3),
                    .agent_store = false,
                    .restart = 0,
                    .run_id = "1234.3",
                    .launcher = "Slurm"};
  EXPECT_EQ(*launch, want);
  const auto other = launch_of(with(kSrun, {{"SLURM_NODEID", "1"},
                                            {"SLURM_PROCID", "3"},
                                            {"SLURM_LOCALID", "1"},
                                            {"SLURM_STEP_NODELIST", "-"},
                                            {"SLURM_JOB_NODELIST", "a1"},
                                            {"SLURM_RESTART_COUNT", "4"},
                                            {"MASTER_PORT", "1025"}}));
  ASSERT_TRUE(other);
  EXPECT_EQ(other->local_size, 2);
  EXPECT_EQ(other->address, "a1");
  EXPECT_EQ(other->port, 1025);
  EXPECT_EQ(other->restart, 4);
  const auto per_node =
      launch_of(with(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "-"}, {"SLURM_NTASKS_PER_NODE", "2"}}));
  ASSERT_TRUE(per_node);
  EXPECT_EQ(per_node->local_size, 2);
}

TEST(LaunchFromEnvironment, RefusesIncompleteOrImpossibleVariablesOfSlurm) {
  const auto refuses = [](const Variables& changes, const std::vector<std::string>& parts) {
    SCOPED_TRACE(changes.begin()->first + "=" + changes.begin()->second);
    expect_error(ErrorKind::kUsage, parts, [&] { launch_of(with(kSrun, changes)); });
  };
  refuses({{"SLURM_NTASKS", "-"}}, {"SLURM_STEP_NUM_TASKS must be set", "srun"});
  refuses({{"SLURM_LOCALID", "-"}}, {"SLURM_LOCALID must be set"});
  refuses({{"SLURM_JOB_ID", "-"}}, {"SLURM_JOB_ID must be set"});
  refuses({{"SLURM_STEP_TASKS_PER_NODE", "-"}}, {"SLURM_STEP_TASKS_PER_NODE must be set"});
  refuses({{"SLURM_STEP_NODELIST", "-"}}, {"SLURM_STEP_NODELIST must be set"});
  refuses({{"SLURM_PROCID", "8"}}, {"SLURM_PROCID", "SLURM_NTASKS"});
  refuses({{"SLURM_PROCID", "x"}}, {"SLURM_PROCID", "'x'"});
  refuses({{"SLURM_LOCALID", "1"}}, {"SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"});
  for (const char* list : {"2(x", "2(xy)", "(x2)", "a", "2,,1", "2"})
    refuses({{"SLURM_STEP_TASKS_PER_NODE", list}}, {"SLURM_STEP_TASKS_PER_NODE"});
  refuses({{"SLURM_STEP_NODELIST", "node[03"}}, {"'node[03'", "MASTER_ADDR"});
}

TEST(FirstSlurmHost, ExpandsTheFirstNameOfAList) {
  EXPECT_EQ(first_slurm_host("node[03-05,7],other-1"), "node03");
  EXPECT_EQ(first_slurm_host("node7,node9"), "node7");
  EXPECT_EQ(first_slurm_host("r[1-2]n[08,10]"), "r1n08");
  EXPECT_EQ(first_slurm_host("gpu-[12]-ib,x"), "gpu-12-ib");
  EXPECT_EQ(first_slurm_host("host.example.org"), "host.example.org");
  for (const char* list : {"", ",a", "a[", "a]", "a[]", "a[x-y]", "a[-3]"})
    expect_error(ErrorKind::kUsage, {"node list", std::string("'") + list + "'"},
                 [&] { first_slurm_host(list); });
}

}  // namespace
}  // namespace palimpsest::distributed
