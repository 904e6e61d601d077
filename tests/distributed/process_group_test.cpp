#include "palimpsest/distributed/process_group.h"
#include "tests/distributed/ranks.h"
#include "tests/support/expect_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

namespace palimpsest::distributed {
namespace {

using palimpsest::testing::expect_error;
using testing::common_result;
using testing::exact;
using testing::Place;
using testing::RankBody;
using testing::run_ranks;

at::Tensor share_of(int rank, at::ScalarType type) {
  torch::manual_seed(rank);
  return torch::randn({3, 1001}, at::kDouble).mul(4).to(type);
}

/// Calls every collective. Returns the results as text, which must be the same on all ranks.
std::string every_collective(Group& group) {
  const int rank = group.rank();
  const int size = group.size();
  std::string text;

  // Parameters that require gradients, two dtypes, other layouts, an empty tensor, and more than one piece.
  std::vector<at::Tensor> tensors{share_of(rank, at::kFloat).requires_grad_(),
                                  share_of(rank, at::kDouble).t(),
                                  share_of(rank, at::kInt),
                                  torch::full({2, 2}, rank, at::kLong),
                                  torch::full({5}, rank % 2 == 0, at::kBool),
                                  torch::full({}, rank, at::kHalf),
                                  torch::empty({0}),
                                  torch::full({4 << 20}, rank + 1., at::kFloat),
                                  torch::full({4 << 20}, rank + 2., at::kFloat)};
  const int root = size - 1;
  group.broadcast(tensors, "several tensors", root);
  for (const auto& tensor : tensors) text += fmt::format("{} ", exact(tensor.to(at::kDouble).sum()));
  if (!torch::equal(tensors[1], share_of(root, at::kDouble).t()))
    text += fmt::format("the broadcast is off by rank {} ", rank);

  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong}) {
    at::Tensor sum = share_of(rank, type), max = sum.clone(), want = torch::zeros({3, 1001}, at::kDouble);
    for (int other = 0; other < size; ++other) want += share_of(other, type).to(at::kDouble);
    group.all_reduce_sum(sum, "sum");
    group.all_reduce_max(max, "max");
    const double off = (sum.to(at::kDouble) - want).abs().max().item<double>();
    const double limit = type == at::kDouble  ? 1e-14
                         : type == at::kFloat ? 1e-5
                         : type == at::kHalf  ? 4e-2
                                              : 0.3;
    if (off > limit) text += fmt::format("{}: the sum is off by {} on rank {} ", toString(type), off, rank);
    text += fmt::format("{} {} ", exact(sum.to(at::kDouble).sum()), exact(max.to(at::kDouble).sum()));
  }
  at::Tensor transposed = share_of(rank, at::kFloat).t();
  group.all_reduce_sum(transposed, "transposed");
  text += exact(transposed.sum());

  for (const auto& share : group.all_gather(share_of(rank, at::kFloat).t(), "shares"))
    text += exact(share.sum());
  const std::vector<double> values{rank + 0.1, 1e300 * (rank % 2 ? -1 : 1), -0.0};
  for (const double sum : group.sum(values, "values")) text += exact(sum);
  const std::vector<int64_t> counts{rank, int64_t{1} << 60};
  for (const int64_t sum : group.sum(counts, "counts")) text += fmt::format("{} ", sum);
  text += fmt::format("{} {} {} ", exact(group.sum(0.1, "value")), group.sum(int64_t{3}, "count"),
                      group.max(rank - 5, "max"));
  text += fmt::format("{} {} {} {} ", group.any(rank == 1, "any"), group.any(false, "any"),
                      group.all(true, "all"), group.all(rank != 1, "all"));
  std::vector<std::string> lengths;
  for (const auto& bytes :
       group.all_gather_bytes(std::string(static_cast<std::size_t>(rank * 3), 'a'), "bytes"))
    lengths.push_back(bytes);
  text += fmt::format("{} ", fmt::join(lengths, "|"));
  text += fmt::format("{} '{}' ", group.broadcast_bytes(fmt::format("of rank {}", rank), "text", root),
                      group.broadcast_bytes("", "nothing"));
  group.barrier("the end");
  group.require_same("a\nb\n", "the texts");
  if (rank == size - 1) group.request_stop(15);
  text += fmt::format("stop {} {}", group.agree_on_stop(), group.agree_on_stop());
  return text;
}

const RankBody kCollectives{"collectives", [](const Place& place) {
                              Group group(place.launch, place.options());
                              return every_collective(group);
                            }};

TEST(Group, GivesAllRanksTheSameBits) {
  for (const int size : {2, 3, 4}) {
    SCOPED_TRACE(size);
    const std::string text = common_result(run_ranks("collectives", size));
    EXPECT_EQ(text.find("off by"), std::string::npos) << text;
    std::vector<std::string> shares;
    for (int rank = 0; rank < size; ++rank) shares.emplace_back(static_cast<std::size_t>(3 * rank), 'a');
    const std::string lengths = fmt::format("{}", fmt::join(shares, "|"));
    EXPECT_NE(text.find(fmt::format(" true false true false {} of rank {} '' stop 15 15", lengths, size - 1)),
              std::string::npos)
        << text;
  }
}

TEST(Group, OfOneRankNeedsNoPort) {
  Group group(Launch{}, {.name = "alone"});
  EXPECT_EQ(group.port(), 0);
  EXPECT_NE(every_collective(group).find("stop 15 15"), std::string::npos);
  group.fail("nobody hears it");
}

TEST(Group, IsFoundByItsNameWhileItLives) {
  {
    Group group(Launch{}, {.name = "by-name"});
    EXPECT_EQ(c10d::resolve_process_group("by-name").get(), group.process_group().get());
    expect_error(ErrorKind::kUsage, {"unique", "'by-name'"}, [] { Group(Launch{}, {.name = "by-name"}); });
  }
  EXPECT_ANY_THROW(c10d::resolve_process_group("by-name"));
  const Group again(Launch{}, {.name = "by-name"});
}

TEST(Group, RefusesBadArguments) {
  expect_error(ErrorKind::kUsage, {"rank 2 of 2"}, [] { Group(Launch{.rank = 2, .size = 2}); });
  expect_error(ErrorKind::kUsage, {"timeout", "above 0"},
               [] { Group(Launch{}, {.timeout = std::chrono::milliseconds(0)}); });
  expect_error(ErrorKind::kUsage, {"name"}, [] { Group(Launch{}, {.name = ""}); });
  Group group(Launch{}, {.name = "arguments"});
  expect_error(ErrorKind::kUsage, {"my sum", "dense"},
               [&] { group.all_reduce_sum(torch::eye(2).to_sparse(), "my sum"); });
  expect_error(ErrorKind::kUsage, {"my sum", "undefined"},
               [&] { group.all_reduce_sum(at::Tensor(), "my sum"); });
  expect_error(ErrorKind::kUsage, {"my sum", "meta"},
               [&] { group.all_reduce_sum(torch::empty({2}, at::kMeta), "my sum"); });
}

TEST(Group, CountsCollectivesAndBytes) {
  Group group(Launch{}, {.name = "counts"});
  const auto begin = group.traffic();
  group.all_reduce_sum(torch::ones({10}), "ten");
  EXPECT_EQ(group.traffic() - begin, (Traffic{1, 40}));
  group.sum(1., "one");
  EXPECT_EQ(group.traffic() - begin, (Traffic{2, 48}));
  group.barrier("not counted");
  EXPECT_EQ(group.traffic() - begin, (Traffic{2, 48}));
  group.broadcast({torch::ones({3}), torch::ones({5})}, "one piece");
  EXPECT_EQ(group.traffic() - begin, (Traffic{3, 80}));
}

const RankBody kIdentity{"identity", [](const Place& place) {
                           GroupOptions options = place.options();
                           options.identity =
                               fmt::format("seed = 7\nlr = {}\n", place.launch.rank == 2 ? "0.2" : "0.1");
                           const Group group(place.launch, options);
                           return std::string("connected");
                         }};

TEST(Group, RefusesRanksWithAnotherConfiguration) {
  for (const auto& outcome : run_ranks("identity", 3)) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_EQ(outcome.error->kind(), ErrorKind::kUsage);
    for (const char* part : {"rank 0 and rank 2", "line 2 of the configuration", "'lr = 0.1'", "'lr = 0.2'"})
      EXPECT_NE(outcome.message().find(part), std::string::npos) << outcome.message();
  }
}

TEST(Group, RefusesRanksThatBelieveInAnotherNumberOfRanks) {
  for (const auto& outcome : run_ranks("collectives", 2, {.size_of_last = 3})) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_NE(outcome.message().find("differ in the number of ranks: '2' and '3'"), std::string::npos)
        << outcome.message();
  }
}

const RankBody kTwice{"same_rank", [](const Place& place) {
                        Launch launch = place.launch;
                        if (launch.rank == 2) launch.rank = 1;
                        const Group group(launch, place.options());
                        return std::string("connected");
                      }};

TEST(Group, RefusesTwoProcessesWithOneRank) {
  for (const auto& outcome : run_ranks("same_rank", 3)) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_NE(outcome.message().find("two processes of 3 have rank 1"), std::string::npos)
        << outcome.message();
  }
}

const RankBody kImpatient{"impatient", [](const Place& place) {
                            GroupOptions options = place.options();
                            options.timeout = std::chrono::milliseconds(4500);
                            const Group group(place.launch, options);
                            return std::string("connected");
                          }};

TEST(Group, NamesRanksThatDoNotConnect) {
  for (const auto& outcome : run_ranks("impatient", 4, {.absent = {2}})) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_EQ(outcome.error->kind(), ErrorKind::kPeer);
    EXPECT_NE(outcome.message().find("rank 2 of 4 did not connect"), std::string::npos) << outcome.message();
    EXPECT_NE(outcome.message().find("4.5 s"), std::string::npos) << outcome.message();
  }
}

TEST(Group, NamesRankZeroIfNobodyListens) {
  for (const auto& outcome : run_ranks("impatient", 2, {.absent = {0}})) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_EQ(outcome.error->kind(), ErrorKind::kPeer);
    EXPECT_NE(outcome.message().find("start rank 0"), std::string::npos) << outcome.message();
  }
}

/// Returns the number of entries of a folder: of threads in /proc/self/task, of open files in /proc/self/fd.
std::ptrdiff_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

/// The same once it is at most `wanted`, or after some seconds: a thread that was joined is listed a little longer.
std::ptrdiff_t settled_entries(const char* folder, std::ptrdiff_t wanted) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (entries(folder) > wanted && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return entries(folder);
}

const RankBody kAgain{"again", [](const Place& place) {
                        std::string text;
                        std::ptrdiff_t threads = 0, files = 0;
                        GroupOptions options = place.options();
                        for (int round = 0; round < 3; ++round) {
                          {
                            Group group(place.launch, options);
                            text += fmt::format("{} {} ", group.port() == place.launch.port,
                                                group.sum(int64_t{1}, "ranks"));
                          }
                          options.listen_fd = -1;
                          // Compared with the first round: libtorch keeps some threads and files of its own
                          // from then on.
                          if (round == 0) {
                            std::this_thread::sleep_for(std::chrono::milliseconds(100));
                            threads = entries("/proc/self/task");
                            files = entries("/proc/self/fd");
                          }
                        }
                        const auto more_threads = settled_entries("/proc/self/task", threads) - threads,
                                   more_files = settled_entries("/proc/self/fd", files) - files;
                        if (more_threads > 0 || more_files > 0)
                          text += fmt::format("left {} threads and {} files more", more_threads, more_files);
                        return text;
                      }};

TEST(Group, CanBeMadeAgainOnTheSamePortAndLeavesNothing) {
  EXPECT_EQ(common_result(run_ranks("again", 3)), "true 3 true 3 true 3 ");
}

TEST(Group, MeetsInTheStoreOfALauncher) {
  EXPECT_EQ(common_result(run_ranks("again", 3, {.agent_store = true})), "true 3 true 3 true 3 ");
}

/// A launcher starts the processes again with the same number of restarts, as torchrun does when a machine
/// joins: its store still holds what the first ones left there.
const RankBody kNextRound{"next_round", [](const Place& place) {
                            if (place.round == 1 && place.launch.rank == 1)
                              std::this_thread::sleep_for(std::chrono::milliseconds(800));
                            Group group(place.launch, place.options());
                            const auto ranks = group.sum(int64_t{1}, "ranks");
                            if (place.round == 0 && place.launch.rank == 2) group.fail("of the first round");
                            return fmt::format("round {}: {} ranks", place.round, ranks);
                          }};

TEST(Group, TakesNothingFromAnEarlierRoundInTheSameStore) {
  EXPECT_EQ(common_result(run_ranks("next_round", 3, {.agent_store = true, .rounds = 2})),
            "round 1: 3 ranks");
}

/// torchrun's agents count restarts each for themselves.
const RankBody kOtherRestarts{"other_restarts", [](const Place& place) {
                                Launch launch = place.launch;
                                launch.restart = launch.rank;
                                Group group(launch, place.options());
                                return fmt::format("{} ranks", group.sum(int64_t{1}, "ranks"));
                              }};

TEST(Group, MeetsWhereTheRanksCountOtherRestarts) {
  EXPECT_EQ(common_result(run_ranks("other_restarts", 3, {.agent_store = true})), "3 ranks");
}

/// Ranks 0 and 2 do not fit; rank 1 starts when they have seen it.
const RankBody kLateForTheVerdict{"late_for_the_verdict", [](const Place& place) {
                                    GroupOptions options = place.options();
                                    options.identity = place.launch.rank == 2 ? "lr = 1" : "lr = 2";
                                    if (place.launch.rank == 1)
                                      std::this_thread::sleep_for(std::chrono::milliseconds(500));
                                    const Group group(place.launch, options);
                                    return std::string("connected");
                                  }};

TEST(Group, TellsALateRankWhyTheOthersWereRefused) {
  for (const bool agent_store : {false, true}) {
    const auto start = std::chrono::steady_clock::now();
    for (const auto& outcome : run_ranks("late_for_the_verdict", 3, {.agent_store = agent_store}))
      EXPECT_NE(outcome.message().find("'lr = 2' and 'lr = 1'"), std::string::npos) << outcome.message();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << "half of the timeout";
  }
}

const RankBody kTooManyRanks{"too_many_ranks", [](const Place& place) {
                               Launch launch = place.launch;
                               launch.size = launch.rank == 0 ? 2 : 4;
                               launch.local_size = launch.size;
                               const Group group(launch, place.options());
                               return std::string("connected");
                             }};

TEST(Group, TellsRanksBeyondTheSizeOfRankZero) {
  const auto start = std::chrono::steady_clock::now();
  for (const auto& outcome : run_ranks("too_many_ranks", 4))
    EXPECT_NE(outcome.message().find("differ in the number of ranks: '2' and '4'"), std::string::npos)
        << outcome.message();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15)) << "half of the timeout";
}

/// Ranks 0 and 1 are a group when a second rank 1 comes.
const RankBody kLateTwin{"late_twin", [](const Place& place) {
                           Launch launch = place.launch;
                           launch.size = launch.local_size = 2;
                           GroupOptions options = place.options();
                           options.timeout = std::chrono::milliseconds(10000);
                           if (launch.rank == 2) {
                             launch.rank = 1;
                             options.timeout = std::chrono::milliseconds(1000);
                             std::this_thread::sleep_for(std::chrono::milliseconds(3000));
                           }
                           Group group(launch, options);
                           for (int i = 0; i < 60; ++i) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(100));
                             group.barrier("a step");
                           }
                           return std::string("done");
                         }};

TEST(Group, RefusesASecondProcessOfARankThatComesLate) {
  const auto outcomes = run_ranks("late_twin", 3);
  EXPECT_EQ(outcomes[0].result, "done") << outcomes[0].message();
  EXPECT_EQ(outcomes[1].result, "done") << outcomes[1].message();
  EXPECT_NE(outcomes[2].message().find("another process has rank 1"), std::string::npos)
      << outcomes[2].message();
}

/// A program that is no store listens at the port: it says nothing, or hangs up.
std::string knock(bool hangs_up) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd, 64) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return "no socket";
  std::thread program([&] {
    while (hangs_up) {
      const int connection = ::accept(fd, nullptr, nullptr);
      if (connection < 0) return;
      ::close(connection);
    }
  });
  std::string message = "connected";
  GroupOptions options;
  options.timeout = std::chrono::milliseconds(1500);
  try {
    const Group group({.rank = 1, .size = 2, .port = ntohs(address.sin_port)}, options);
  } catch (const Error& error) {
    message = error.what();
  }
  ::shutdown(fd, SHUT_RDWR);
  program.join();
  ::close(fd);
  return message;
}

TEST(Group, SaysThatAnotherProgramListensAtThePort) {
  for (const bool hangs_up : {false, true}) {
    const auto start = std::chrono::steady_clock::now();
    const std::string message = knock(hangs_up);
    for (const char* part : {"[rank 1 of 2] what listens at 127.0.0.1:", "MASTER_ADDR and MASTER_PORT"})
      EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  }
}

const RankBody kDifferentTexts{"different_texts", [](const Place& place) {
                                 Group group(place.launch, place.options());
                                 group.require_same(place.launch.rank == 1 ? "a\nb" : "a\nc",
                                                    "the class lists", ErrorKind::kData);
                                 return std::string("same");
                               }};

TEST(Group, RequiresTheSameTextOnAllRanks) {
  for (const auto& outcome : run_ranks("different_texts", 3)) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_EQ(outcome.error->kind(), ErrorKind::kData);
    EXPECT_EQ(outcome.message(), "the class lists of rank 0 and rank 1 differ: 'c' and 'b'");
  }
}

}  // namespace
}  // namespace palimpsest::distributed
