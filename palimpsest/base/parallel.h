#pragma once

#include <cstdint>
#include <exception>

#ifdef PALIMPSEST_PARALLEL_STD_THREAD
#include <thread>
#include <vector>
#else
#include <omp.h>
#endif

namespace palimpsest {

/// Returns the number of threads that a parallel loop may use from the calling thread: OpenMP's setting,
/// which libtorch shares; 1 within another parallel loop.
inline int max_threads() {
#ifdef PALIMPSEST_PARALLEL_STD_THREAD
  return 4;
#else
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#endif
}

/// Runs `task(i)` once for each i in [0, count), on OpenMP's thread pool, which libtorch uses too.
/// Tasks must be independent: any thread may run any task. A reduction that must give the same bytes for any
/// number of threads writes one partial result per task, and afterwards adds them in the order of the tasks.
/// The first exception of a task is rethrown on the calling thread.
template <class Task>
void parallel_tasks(int64_t count, const Task& task) {
  const int threads = max_threads();
  if (count <= 1 || threads <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::exception_ptr failure;
#ifdef PALIMPSEST_PARALLEL_STD_THREAD
  // ThreadSanitizer does not see libgomp's barriers, so its builds run the same loop on std::thread.
  std::vector<std::thread> pool;
  std::vector<std::exception_ptr> failures(threads);
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      try {
        for (int64_t i = t; i < count; i += threads) task(i);
      } catch (...) {
        failures[t] = std::current_exception();
      }
    });
  }
  for (auto& thread : pool) thread.join();
  for (auto& f : failures)
    if (f && !failure) failure = f;
#else
#pragma omp parallel for schedule(dynamic, 1) num_threads(static_cast<int>(count < threads ? count : threads))
  for (int64_t i = 0; i < count; ++i) {
    try {
      task(i);
    } catch (...) {
#pragma omp critical(palimpsest_parallel_tasks)
      if (!failure) failure = std::current_exception();
    }
  }
#endif
  if (failure) std::rethrow_exception(failure);
}

/// Calls `body(begin, end)` for consecutive ranges that make up [0, count), one range per thread. A thread
/// gets the same range on every call, so a second pass over the same data finds it in the caches of its core.
/// (If two cores share no cache, reading a line that the other core wrote takes several times as long as
/// reading memory.) Unlike parallel_tasks, it does not balance the load. `body` must not throw.
template <class Body>
void parallel_ranges(int64_t count, const Body& body) {
  const int64_t threads = count < max_threads() ? count : max_threads();
  if (threads <= 1) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
#ifdef PALIMPSEST_PARALLEL_STD_THREAD
  std::vector<std::thread> pool;
  for (int64_t t = 0; t < threads; ++t)
    pool.emplace_back([&, t] { body(count * t / threads, count * (t + 1) / threads); });
  for (auto& thread : pool) thread.join();
#else
#pragma omp parallel for schedule(static, 1) num_threads(static_cast<int>(threads))
  for (int64_t t = 0; t < threads; ++t) body(count * t / threads, count * (t + 1) / threads);
#endif
}

}  // namespace palimpsest
