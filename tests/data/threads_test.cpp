#include "palimpsest/data/common/threads.h"

#include "palimpsest/data/check.h"
#include "palimpsest/data/class_uniform.h"
#include "palimpsest/data/generated/streets.h"
#include "palimpsest/data/loader.h"
#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

namespace palimpsest::data {
namespace {

using testing::expect_error;

constexpr int64_t kMany = 64;

/// While it lives, a thread has a stack of 1 GiB, and the process room for about four of them.
class RoomForFewThreads {
 public:
  RoomForFewThreads() {
    constexpr uint64_t kStack = uint64_t{1} << 30;
    uint64_t pages = 0;  // of the process
    std::ifstream("/proc/self/statm") >> pages;
    getrlimit(RLIMIT_AS, &limit_);
    const rlimit few{pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + 4 * kStack + kStack / 2,
                     limit_.rlim_max};
    setrlimit(RLIMIT_AS, &few);
    pthread_getattr_default_np(&attributes_);
    pthread_attr_t large;
    pthread_getattr_default_np(&large);
    pthread_attr_setstacksize(&large, kStack);
    pthread_setattr_default_np(&large);
  }
  ~RoomForFewThreads() {
    pthread_setattr_default_np(&attributes_);
    setrlimit(RLIMIT_AS, &limit_);
  }
  RoomForFewThreads(const RoomForFewThreads&) = delete;
  RoomForFewThreads& operator=(const RoomForFewThreads&) = delete;

 private:
  rlimit limit_{};
  pthread_attr_t attributes_{};
};

TEST(StartThreads, RunsTheWorkInEach) {
  std::atomic<int> runs{0};
  start_threads(5, "the test", "--workers", [&] { ++runs; }, [] { FAIL(); });
  EXPECT_EQ(runs, 5);
}

TEST(StartThreads, ThatTheSystemDoesNotStartStopTheOthersAndAreOneLine) {
  std::atomic<int> begun{0}, at_work{0};
  std::atomic<bool> stopped{false};
  const auto work = [&] {
    ++begun, ++at_work;
    while (!stopped) std::this_thread::yield();
    --at_work;
  };
  const RoomForFewThreads room;
  expect_error(ErrorKind::kMemory,
               {"the test cannot start 64 threads", "give fewer (--workers)", "ulimit -u"},
               [&] { start_threads(kMany, "the test", "--workers", work, [&] { stopped = true; }); });
  EXPECT_GT(begun, 0);
  EXPECT_LT(begun, kMany);
  EXPECT_EQ(at_work, 0) << "a thread lives on";
}

TEST(StartThreads, ItsUsersSayWhichOptionStartsFewer) {
  const auto streets = generated::streets(kMany, 48, 64, 1, testing::plain());
  const testing::TemporaryFolder folder;
  testing::put_image(folder / "train/a.png", 4, 4);
  testing::put_label(folder / "trainannot/a.png", 4, 4, 0);
  const RoomForFewThreads room;
  expect_error(ErrorKind::kMemory, {"the index of classes cannot start 64 threads", "--workers"},
               [&] { ClassPresence::build(*streets, kMany); });
  expect_error(ErrorKind::kMemory, {"the loader cannot start 64 threads", "--workers"},
               [&] { Loader(streets, {.batch_size = 2, .workers = kMany}); });
  expect_error(ErrorKind::kMemory, {"data check cannot start 63 threads", "--threads"},
               [&] { check_data(folder.path(), {.kind = "", .full = true, .threads = kMany}); });
}

}  // namespace
}  // namespace palimpsest::data
