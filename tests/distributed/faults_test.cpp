#include "palimpsest/distributed/common/rendezvous.h"
#include "palimpsest/distributed/process_group.h"
#include "tests/distributed/ranks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest::distributed {
namespace {

using testing::Outcome;
using testing::Place;
using testing::RankBody;
using testing::run_ranks;
using Clock = std::chrono::steady_clock;

void expect_parts(const Outcome& outcome, ErrorKind kind, const std::vector<std::string>& parts) {
  ASSERT_TRUE(outcome.error) << outcome.message();
  EXPECT_EQ(outcome.error->kind(), kind) << outcome.message();
  EXPECT_EQ(outcome.message().find('\n'), std::string::npos) << outcome.message();
  for (const auto& part : parts)
    EXPECT_NE(outcome.message().find(part), std::string::npos)
        << "no '" << part << "' in: " << outcome.message();
}

/// Ten steps; rank `argument` kills itself in the middle.
const RankBody kKilled{"killed", [](const Place& place) {
                         Group group(place.launch, place.options());
                         const at::Tensor values = torch::ones({100000});
                         for (int step = 0; step < 10; ++step) {
                           if (step == 5 && place.launch.rank == std::stoi(place.argument)) {
                             std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the others wait
                             ::kill(::getpid(), SIGKILL);
                           }
                           group.all_reduce_sum(values, fmt::format("the gradients of step {}", step));
                         }
                         return std::string("all steps");
                       }};

TEST(KilledRank, IsNamedWithTheOperation) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks("killed", 3, {.argument = "1"});
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  for (const int rank : {0, 2})
    expect_parts(outcomes[rank], ErrorKind::kPeer, {"the gradients of step 5", "rank 1 of 3 is gone"});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15)) << "half of the timeout";
}

TEST(KilledRank, IsNamedIfItHeldTheStore) {
  const auto outcomes = run_ranks("killed", 3, {.argument = "0"});
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  for (const int rank : {1, 2})
    expect_parts(outcomes[rank], ErrorKind::kPeer, {"the gradients of step 5", "rank 0 of 3", "gone"});
}

/// Rank `argument` fails while the others wait for it.
const RankBody kFails{"fails", [](const Place& place) {
                        Group group(place.launch, place.options());
                        group.barrier("the start");
                        if (place.launch.rank == std::stoi(place.argument)) {
                          group.fail("the loss is NaN in step 12\nsecond line", ErrorKind::kDiverged);
                          throw Error(ErrorKind::kDiverged, "own message");
                        }
                        group.all_reduce_sum(torch::ones({10}), "the metrics");
                        return std::string("done");
                      }};

TEST(Fail, EndsAnOperationOfTheOthersWithTheMessage) {
  for (const int failing : {0, 2}) {
    const auto outcomes = run_ranks("fails", 3, {.argument = std::to_string(failing)});
    for (int rank = 0; rank < 3; ++rank)
      if (rank == failing)
        expect_parts(outcomes[rank], ErrorKind::kDiverged, {"own message"});
      else
        expect_parts(outcomes[rank], ErrorKind::kDiverged,
                     {fmt::format("rank {} of 3: the loss is NaN in step 12 second line", failing)});
  }
}

/// The failing rank keeps its connections until the other has ended: only the store carries the message.
const RankBody kFailsAndStays{
    "fails_and_stays", [](const Place& place) {
      GroupOptions options = place.options();
      std::string handled;
      options.on_fault = [&](const Error& error) { handled = error.what(); };
      Group group(place.launch, options);
      group.barrier("the start");
      if (place.launch.rank == 0) {
        group.fail("disk full", ErrorKind::kOutput);  // returns when the others have read it
        std::string text;
        try {
          group.barrier("more");
        } catch (const Error& error) {
          text = error.what();
        }
        return text + (handled.empty() ? "" : " handler called");
      }
      const auto start = Clock::now();
      std::string text;
      try {
        group.all_reduce_sum(torch::ones({10}), "the metrics");
      } catch (const Error& error) {
        text = error.what();
      }
      const bool soon = Clock::now() - start < std::chrono::seconds(10);
      return fmt::format("{}{}{}", text, handled == text ? ", handled" : "", soon ? ", soon" : "");
    }};

TEST(Fail, NeedsNoClosedConnection) {
  const auto outcomes = run_ranks("fails_and_stays", 2);
  EXPECT_EQ(outcomes[0].result, "rank 0 of 2: disk full") << outcomes[0].message();
  EXPECT_EQ(outcomes[1].result, "rank 0 of 2: disk full, handled, soon") << outcomes[1].message();
}

const RankBody kHandlerEnds{"handler_ends", [](const Place& place) {
                              GroupOptions options = place.options();
                              options.on_fault = [](const Error& error) {
                                const std::string text = std::string("rhandler: ") + error.what();
                                if (::write(101, text.data(), text.size()) < 0) std::abort();
                                std::_Exit(0);
                              };
                              Group group(place.launch, options);
                              if (place.launch.rank == 1) {
                                group.fail("image 17 is truncated", ErrorKind::kData);
                                return std::string("failed");
                              }
                              group.all_reduce_sum(torch::ones({10}), "the metrics");
                              return std::string("not reached");
                            }};

TEST(Fail, LetsAProgramEndInItsHandler) {
  const auto outcomes = run_ranks("handler_ends", 3);
  EXPECT_EQ(outcomes[1].result, "failed");
  for (const int rank : {0, 2})
    EXPECT_EQ(outcomes[rank].result, "handler: rank 1 of 3: image 17 is truncated");
}

const RankBody kThrows{"throws", [](const Place& place) {
                         Group group(place.launch, place.options());
                         if (place.launch.rank == 1) throw Error(ErrorKind::kData, "own message");
                         group.all_reduce_sum(torch::ones({10}), "the metrics");
                         return std::string("done");
                       }};

TEST(Group, TellsTheOthersThatAnExceptionEndedARank) {
  const auto outcomes = run_ranks("throws", 2);
  expect_parts(outcomes[0], ErrorKind::kPeer, {"rank 1 of 2", "left the group by an exception"});
  expect_parts(outcomes[1], ErrorKind::kData, {"own message"});
}

const RankBody kLeavesEarly{"leaves_early", [](const Place& place) {
                              Group group(place.launch, place.options());
                              if (place.launch.rank == 1) return std::string("left");
                              group.all_reduce_sum(torch::ones({10}), "the metrics");
                              return std::string("done");
                            }};

TEST(Group, NamesARankThatHasLeft) {
  const auto outcomes = run_ranks("leaves_early", 2);
  expect_parts(outcomes[0], ErrorKind::kPeer, {"the metrics", "rank 1 of 2 has left the group"});
  EXPECT_EQ(outcomes[1].result, "left");
}

/// Options with a timeout of 1 s, for ranks that have met before: a process may take longer to start.
GroupOptions impatient_options(const Place& place) {
  GroupOptions options = place.options();
  {
    const Group first(place.launch, options);
  }
  options.listen_fd = -1;
  options.timeout = std::chrono::milliseconds(1000);
  return options;
}

/// Rank 1 lives, but does not come to the collective before the others have given up.
const RankBody kHangs{"hangs", [](const Place& place) {
                        Group group(place.launch, impatient_options(place));
                        group.barrier("the start");
                        if (place.launch.rank == 1)
                          while (true) {
                            group.check();
                            std::this_thread::sleep_for(std::chrono::milliseconds(10));
                          }
                        group.all_reduce_sum(torch::ones({10}), "the metrics");
                        return std::string("done");
                      }};

TEST(Timeout, NamesTheRankThatHasNotReachedTheOperation) {
  for (const auto& outcome : run_ranks("hangs", 2))
    expect_parts(
        outcome, ErrorKind::kPeer,
        {"the metrics", "did not end within 1 s", "rank 1 of 2 lives but has not reached it", "the start"});
}

/// The ranks call different collectives.
const RankBody kDisordered{"disordered", [](const Place& place) {
                             Group group(place.launch, impatient_options(place));
                             if (place.launch.rank == 1)
                               group.barrier("the end");
                             else
                               group.sum(1., "the metrics");
                             return std::string("done");
                           }};

TEST(Timeout, NamesCollectivesThatDoNotFit) {
  for (const auto& outcome : run_ranks("disordered", 2))
    expect_parts(outcome, ErrorKind::kPeer,
                 {"all ranks live, but rank", "has begun", "the metrics", "the end"});
}

/// Rank `argument` is stopped as a whole: neither its watcher nor its kernel closes anything.
const RankBody kStopped{"stopped", [](const Place& place) {
                          auto group = std::make_unique<Group>(place.launch, impatient_options(place));
                          const auto pids =
                              group->all_gather_bytes(std::to_string(::getpid()), "process numbers");
                          const int stopped = std::stoi(place.argument);
                          if (place.launch.rank == stopped) ::raise(SIGSTOP);
                          try {
                            group->all_reduce_sum(torch::ones({10}), "the metrics");
                          } catch (const Error&) {
                            group.reset();  // ends, although the store may not answer
                            if (place.launch.rank == (stopped + 1) % 3) {
                              std::this_thread::sleep_for(std::chrono::milliseconds(500));
                              ::kill(std::stoi(pids[static_cast<std::size_t>(stopped)]), SIGKILL);
                            }
                            throw;
                          }
                          return std::string("done");
                        }};

TEST(Timeout, NamesAStoppedRank) {
  const auto outcomes = run_ranks("stopped", 3, {.argument = "1"});
  for (const int rank : {0, 2})
    expect_parts(outcomes[rank], ErrorKind::kPeer, {"the metrics", "rank 1 of 3 is gone"});
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

TEST(Timeout, NamesAStoppedRankThatHoldsTheStore) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks("stopped", 3, {.argument = "0"});
  for (const int rank : {1, 2})
    expect_parts(outcomes[rank], ErrorKind::kPeer,
                 {"the metrics (all-reduce) failed: rank 0 of 3, which holds the store at",
                  "is gone (no answer: it hangs"});
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

/// Rank 0 is stopped when all have done their work.
const RankBody kStoppedAtTheEnd{
    "stopped_at_the_end", [](const Place& place) {
      pid_t first = 0;
      {
        Group group(place.launch, place.options());
        first = std::stoi(group.all_gather_bytes(std::to_string(::getpid()), "process numbers")[0]);
        if (place.launch.rank == 0) ::raise(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
      ::kill(first, SIGKILL);
      return std::string("left");
    }};

TEST(Group, EndsWhereTheHolderOfTheStoreHangs) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks("stopped_at_the_end", 2);
  EXPECT_EQ(outcomes[1].result, "left") << outcomes[1].message();
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20)) << "less than the timeout";
}

/// Rank 2 meets the others and does not answer any more.
const RankBody kSilentWhenConnecting{"silent_when_connecting", [](const Place& place) {
                                       GroupOptions options = place.options();
                                       options.timeout = std::chrono::milliseconds(2000);
                                       if (place.launch.rank == 2) {
                                         const Meeting meeting = meet(place.launch, options);
                                         std::this_thread::sleep_for(std::chrono::seconds(6));
                                         return std::string("slept");
                                       }
                                       const Group group(place.launch, options);
                                       return std::string("connected");
                                     }};

TEST(Timeout, NamesARankThatIsSilentWhenTheOthersConnect) {
  const auto outcomes = run_ranks("silent_when_connecting", 3);
  for (const int rank : {0, 1})
    expect_parts(outcomes[rank], ErrorKind::kPeer,
                 {"connecting the ranks to each other failed: rank 2 of 3 is gone"});
  EXPECT_EQ(outcomes[2].result, "slept") << outcomes[2].message();
}

const RankBody kNoInterface{"no_interface", [](const Place& place) {
                              if (place.launch.rank == 1) ::setenv("GLOO_SOCKET_IFNAME", "nowhere0", 1);
                              const Group group(place.launch, place.options());
                              return std::string("connected");
                            }};

TEST(Fail, EndsTheOthersWhileTheyConnect) {
  const auto start = Clock::now();
  for (const auto& outcome : run_ranks("no_interface", 3))
    expect_parts(
        outcome, ErrorKind::kPeer,
        {"connecting the ranks to each other failed on rank 1 of 3", "nowhere0", "GLOO_SOCKET_IFNAME"});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15)) << "half of the timeout";
}

/// Rank 0, which holds the store, is stopped and rank 2 dies; rank 1 is in a collective, or leaves while one
/// runs.
void stop_one_and_kill_another(Group& group, int rank) {
  group.barrier("the start");
  if (rank == 0) ::raise(SIGSTOP);
  if (rank != 2) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::raise(SIGKILL);
}

const RankBody kSlowHandler{
    "slow_handler", [](const Place& place) {
      GroupOptions options = place.options();
      std::string handled = "not called";
      options.on_fault = [&](const Error&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        handled = "called";
      };
      auto group = std::make_unique<Group>(place.launch, options);
      const int first = std::stoi(group->all_gather_bytes(std::to_string(::getpid()), "process numbers")[0]);
      stop_one_and_kill_another(*group, place.launch.rank);
      std::string text;
      try {
        group->all_reduce_sum(torch::ones({10}), "the metrics");
      } catch (const Error& error) {
        text = error.what();
      }
      group.reset();
      ::kill(first, SIGKILL);
      return handled + ", " + text;
    }};

TEST(Fault, EndsARankWhoseHandlerIsSlowWhereTheStoreHangs) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks("slow_handler", 3);
  EXPECT_EQ(outcomes[1].result.find("called, the metrics (all-reduce) failed: rank 0 of 3"), 0u)
      << outcomes[1].message();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

const RankBody kLeavesWork{
    "leaves_work", [](const Place& place) {
      int first = 0;
      {
        Group group(place.launch, place.options());
        first = std::stoi(group.all_gather_bytes(std::to_string(::getpid()), "process numbers")[0]);
        stop_one_and_kill_another(group, place.launch.rank);
        std::vector<at::Tensor> tensors{torch::ones({10})};
        const auto work = group.process_group()->allreduce(tensors);
      }
      ::kill(first, SIGKILL);
      return std::string("left");
    }};

TEST(Fault, DoesNotHoldARankThatLeavesWhereTheStoreHangs) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks("leaves_work", 3);
  EXPECT_EQ(outcomes[1].result, "left") << outcomes[1].message();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(25));
}

const RankBody kFailsWithoutStore{
    "fails_without_store", [](const Place& place) {
      auto group = std::make_unique<Group>(place.launch, place.options());
      const int first = std::stoi(group->all_gather_bytes(std::to_string(::getpid()), "process numbers")[0]);
      if (place.launch.rank == 0) ::raise(SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const auto start = Clock::now();
      group->fail("image 3 is truncated", ErrorKind::kData);
      const bool soon = Clock::now() - start < std::chrono::seconds(12);
      group.reset();
      ::kill(first, SIGKILL);
      return std::string(soon ? "soon" : "late");
    }};

TEST(Fail, ReturnsSoonWhereTheStoreHangs) {
  EXPECT_EQ(run_ranks("fails_without_store", 2)[1].result, "soon");
}

/// A signal of the program comes while the ranks wait for rank 2.
const RankBody kGivesUp{"gives_up", [](const Place& place) {
                          GroupOptions options = place.options();
                          const auto start = Clock::now();
                          options.gives_up = [&] {
                            return place.launch.rank == 1 && Clock::now() - start > std::chrono::seconds(3);
                          };
                          const Group group(place.launch, options);
                          return std::string("connected");
                        }};

TEST(Group, EndsTheMeetingWhereARankGivesUp) {
  const auto start = Clock::now();
  for (const auto& outcome : run_ranks("gives_up", 3, {.absent = {2}}))
    expect_parts(outcome, ErrorKind::kPeer, {"rank 1 of 3 was stopped before all ranks had met"});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15)) << "half of the timeout";
}

TEST(Group, ARankGivesUpThatWaitsForRankZero) {
  const auto start = Clock::now();
  expect_parts(run_ranks("gives_up", 3, {.absent = {0, 2}})[0], ErrorKind::kPeer,
               {"rank 1 of 3 was stopped before all ranks had met"});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15)) << "half of the timeout";
}

/// Rank 2 meets the others and hangs; rank 1 is stopped while it connects to it.
const RankBody kStoppedConnecting{"stopped_connecting", [](const Place& place) {
                                    GroupOptions options = place.options();
                                    if (place.launch.rank == 2) {
                                      const Meeting meeting = meet(place.launch, options);
                                      std::this_thread::sleep_for(std::chrono::seconds(8));
                                      return std::string("slept");
                                    }
                                    const auto start = Clock::now();
                                    options.gives_up = [&] {
                                      return place.launch.rank == 1 &&
                                             Clock::now() - start > std::chrono::seconds(4);
                                    };
                                    const Group group(place.launch, options);
                                    return std::string("connected");
                                  }};

TEST(Group, EndsConnectingWhereARankGivesUp) {
  const auto start = Clock::now();
  const auto outcomes = run_ranks("stopped_connecting", 3);
  for (const int rank : {0, 1})
    expect_parts(outcomes[rank], ErrorKind::kPeer, {"rank 1 of 3", "was stopped"});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(15)) << "half of the timeout";
}

const RankBody kFewFiles{"few_files", [](const Place& place) {
                           const rlimit limit{60, 60};
                           if (place.launch.rank == 1) ::setrlimit(RLIMIT_NOFILE, &limit);
                           const Group group(place.launch, place.options());
                           return std::string("connected");
                         }};

TEST(Group, SaysHowManyOpenFilesItNeeds) {
  const auto outcomes = run_ranks("few_files", 2, {.absent = {0}});
  expect_parts(outcomes[0], ErrorKind::kUsage, {"rank 1 of 2 needs 130 open files", "60", "ulimit -n"});
}

const RankBody kBrokenPipe{
    "broken_pipe", [](const Place& place) {
      const Group group(place.launch, place.options());
      int ends[2];
      if (::pipe(ends) != 0) return std::string("no pipe");
      ::close(ends[0]);
      return std::string(::write(ends[1], "x", 1) < 0 && errno == EPIPE ? "lives" : "?");
    }};

TEST(Group, MakesAWriteToARankThatIsGoneAnError) {
  EXPECT_EQ(testing::common_result(run_ranks("broken_pipe", 2)), "lives");
}

/// Rank 0 meets again on its port after a fault between the meeting and the first collective.
const RankBody kConnectsAgain{"connects_again", [](const Place& place) {
                                GroupOptions options = place.options();
                                if (place.launch.rank == 1) ::setenv("GLOO_SOCKET_IFNAME", "nowhere0", 1);
                                try {
                                  const Group group(place.launch, options);
                                  return std::string("connected");
                                } catch (const Error&) {
                                  ::unsetenv("GLOO_SOCKET_IFNAME");
                                }
                                options.listen_fd = -1;
                                Group group(place.launch, options);
                                return fmt::format("{} ranks", group.sum(int64_t{1}, "ranks"));
                              }};

TEST(Group, CanBeMadeAgainAfterAFaultWhileTheRanksConnected) {
  EXPECT_EQ(testing::common_result(run_ranks("connects_again", 3)), "3 ranks");
}

/// Collectives of others go through the same guard: they throw, and their futures carry the error.
const RankBody kOthersWork{"others_work", [](const Place& place) {
                             Group group(place.launch, place.options());
                             group.barrier("the start");
                             if (place.launch.rank == 0) {
                               group.fail("no more data");
                               return std::string("failed");
                             }
                             std::string text;
                             std::vector<at::Tensor> tensors{torch::ones({10})};
                             c10::intrusive_ptr<c10::ivalue::Future> future;
                             try {
                               const OperationName name("statistics of layer 3");
                               const auto work = group.process_group()->allreduce(tensors);
                               future = work->getFuture();
                               work->wait();
                             } catch (const Error& error) {
                               text = error.what();
                             }
                             if (!future) return "early: " + text;  // the message was faster
                             future->wait();
                             return "late: " + text + (future->hasError() ? ", future" : "");
                           }};

TEST(Fail, ReachesCollectivesOfOthers) {
  const auto outcomes = run_ranks("others_work", 2);
  EXPECT_TRUE(outcomes[1].result == "late: rank 0 of 2: no more data, future" ||
              outcomes[1].result == "early: rank 0 of 2: no more data")
      << outcomes[1].message();
}

}  // namespace
}  // namespace palimpsest::distributed
