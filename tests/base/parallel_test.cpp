#include "palimpsest/base/parallel.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

TEST(ParallelTasks, RunsEveryTaskExactlyOnce) {
  for (const int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    parallel_tasks(count, [&](int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (const auto& n : runs) EXPECT_EQ(n, 1);
  }
}

TEST(ParallelTasks, RethrowsAnExceptionOfATaskOnTheCallingThread) {
  for (const int64_t count : {1, 100}) {
    std::atomic<int> others = 0;
    try {
      parallel_tasks(count, [&](int64_t i) {
        if (i == count / 2) throw std::runtime_error("task " + std::to_string(i));
        ++others;
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "task " + std::to_string(count / 2));
    }
    EXPECT_LT(others, count);
  }
}

TEST(ParallelTasks, SurvivesAnExceptionOfEveryTask) {
  EXPECT_THROW(parallel_tasks(50, [](int64_t) { throw std::logic_error("each"); }), std::logic_error);
  int64_t sum = 0;  // and the pool still works
  parallel_tasks(1, [&](int64_t) { sum = 1; });
  EXPECT_EQ(sum, 1);
}

TEST(ParallelTasks, InsideAParallelRegionRunsOnTheCallingThread) {
  std::atomic<int> inner = 0;
  parallel_tasks(4, [&](int64_t) { parallel_tasks(3, [&](int64_t) { ++inner; }); });
  EXPECT_EQ(inner, 12);
}

TEST(ParallelRanges, CoverEveryIndexExactlyOnceInOrder) {
  for (const int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    parallel_ranges(count, [&](int64_t begin, int64_t end) {
      EXPECT_LT(begin, end);
      for (int64_t i = begin; i < end; ++i) ++runs[static_cast<std::size_t>(i)];
    });
    for (const auto& n : runs) EXPECT_EQ(n, 1);
  }
}

#ifdef _OPENMP
TEST(ParallelRanges, GiveTheSameThreadTheSameRangeOnEveryCall) {
  constexpr int64_t kCount = 64;
  std::vector<int> first(kCount), again(kCount);
  const auto note = [](std::vector<int>& threads) {
    parallel_ranges(kCount, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) threads[static_cast<std::size_t>(i)] = omp_get_thread_num();
    });
  };
  note(first);
  note(again);
  EXPECT_EQ(first, again);
}
#endif

}  // namespace
}  // namespace palimpsest
