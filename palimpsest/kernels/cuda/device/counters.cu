#include "palimpsest/kernels/cuda/device/counters.h"

#include "palimpsest/kernels/cuda/device/platform.cuh"

#include <deque>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace palimpsest::kernels::cuda {
namespace {

class CounterPool {
 public:
  static CounterPool& instance() {
    static auto& pool = *new CounterPool;  // graphs may be destroyed after static objects
    return pool;
  }

  unsigned* of(Stream stream) {
    const StreamKey key = key_of(stream);
    auto [counters, is_new] = find_or_take(key);
    while (!counters) {
      add(key.device);
      std::tie(counters, is_new) = find_or_take(key);
    }
    if (is_new && key.capture != 0) {
      auto* const lease = new StreamKey(key);
      if (!call_with_graph_end(stream, give_back, lease))
        delete lease;  // the graph has the counters for good
    }
    return counters;
  }

  void drop(Stream stream, const unsigned* counters) {
    const StreamKey key = key_of(stream);
    const std::scoped_lock lock(mutex_);
    if (const auto found = taken_.find(key); found != taken_.end() && found->second == counters)
      taken_.erase(found);
  }

 private:
  static constexpr int64_t kAtOnce = 32;

  /// Returns the counters of `key` and whether it had none before; null if none are left.
  std::pair<unsigned*, bool> find_or_take(const StreamKey& key) {
    const std::scoped_lock lock(mutex_);
    if (const auto found = taken_.find(key); found != taken_.end()) return {found->second, false};
    auto& free = free_[key.device];
    if (free.empty()) return {nullptr, false};
    unsigned* const counters = free.front();
    free.pop_front();
    taken_.emplace(key, counters);
    return {counters, true};
  }

  // Calls CUDA without the lock, because CUDA may wait for give_back on another thread.
  void add(int device) {
    constexpr int64_t kBytes = kAtOnce * kCounterBytes;
    unsigned char* more = nullptr;
    try {
      more = static_cast<unsigned char*>(new_zeroed_device_memory(kBytes));
    } catch (const std::runtime_error& e) {
      throw std::runtime_error("[counters] a new stream or graph needs " + std::to_string(kBytes) +
                               " bytes of device memory outside of libtorch's pools, got: " + e.what() +
                               " (free some, for instance by torch.cuda.empty_cache())");
    }
    const std::scoped_lock lock(mutex_);
    for (int64_t i = 0; i < kAtOnce; ++i)
      free_[device].push_back(reinterpret_cast<unsigned*>(more + i * kCounterBytes));
  }

  // CUDA calls it on a thread of its own, and permits no CUDA call in it.
  static void give_back(void* lease) {
    const StreamKey key = *static_cast<StreamKey*>(lease);
    delete static_cast<StreamKey*>(lease);
    CounterPool& pool = instance();
    const std::scoped_lock lock(pool.mutex_);
    const auto found = pool.taken_.find(key);
    if (found == pool.taken_.end()) return;  // dropped
    pool.free_[key.device].push_back(found->second);
    pool.taken_.erase(found);
  }

  std::mutex mutex_;
  std::map<StreamKey, unsigned*> taken_;
  std::map<int, std::deque<unsigned*>>
      free_;  // per device; taken at the front, used again as late as possible
};

}  // namespace

unsigned* counters_of(Stream stream) {
  return CounterPool::instance().of(stream);
}

void reset_counters(Stream stream, unsigned* counters) noexcept {
  try {
    if (!clear_in_order(counters, kCounterBytes, stream)) CounterPool::instance().drop(stream, counters);
  } catch (...) {  // the device is lost: the error that led here tells more
  }
}

}  // namespace palimpsest::kernels::cuda
