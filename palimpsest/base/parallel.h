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

/// Threads that `parallel_tasks` may use from the calling thread: OpenMP's setting, which libtorch shares.
inline int max_threads() {
#ifdef PALIMPSEST_PARALLEL_STD_THREAD
  return 4;
#else
  return omp_in_parallel() ? 1 : omp_get_max_threads();
#endif
}

/// Runs `task(i)` for i in [0, count), each exactly once, on the OpenMP pool (which is libtorch's own).
/// Tasks must be independent. Which thread runs a task is unspecified, so a reduction that must give the same
/// bytes for any number of threads writes one partial result a task and adds them in task order afterwards.
/// The first exception is rethrown on the calling thread.
template <class Task>
void parallel_tasks(int64_t count, const Task& task) {
  const int threads = max_threads();
  if (count <= 1 || threads <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::exception_ptr failure;
#ifdef PALIMPSEST_PARALLEL_STD_THREAD
  // ThreadSanitizer does not see libgomp's barriers, so under it the same loop runs on std::thread.
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

/// Calls body(begin, end) for ranges that together are [0, count): one range a thread, and on every call the
/// same thread gets the same range, so that a second sweep over the same data finds it in that core's caches.
/// (Where two cores share no cache, lines that the other one wrote cost several times a read from memory.)
/// Without balancing, unlike parallel_tasks. `body` must not throw.
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
