#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace palimpsest::memory {

/// Counts live bytes over all threads, with their peak and a limit. It takes no lock unless it is observed.
/// The peak is exact: every value that the count rises to is the result of one atomic addition, and the
/// thread that made the addition raises the peak to that value.
class ByteCounter {
 public:
  /// Receives every change, one at a time and in order. It must not allocate through the allocator that uses
  /// this counter.
  class Observer {
   public:
    virtual void changed(int64_t current) = 0;

   protected:
    ~Observer() = default;
  };

  /// Adds `bytes`. Returns false, and adds nothing, if the count would exceed the limit.
  bool add(int64_t bytes) {
    if (!observed_.load(std::memory_order_acquire)) return add_if_allowed(bytes) >= 0;
    std::lock_guard lock(mutex_);
    const int64_t current = add_if_allowed(bytes);
    if (current >= 0 && observer_) observer_->changed(current);
    return current >= 0;
  }

  void remove(int64_t bytes) {
    if (!observed_.load(std::memory_order_acquire)) {
      current_.fetch_sub(bytes, std::memory_order_relaxed);
      return;
    }
    std::lock_guard lock(mutex_);
    const int64_t current = current_.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
    if (observer_) observer_->changed(current);
  }

  int64_t current() const { return current_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void set_limit(int64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }

  /// Returns the peak until now.
  int64_t reset_peak() {
    const int64_t before = peak_.exchange(current(), std::memory_order_relaxed);
    raise_peak(current());  // a concurrent addition may have raised the old peak only
    return before;
  }

  /// For a fork: no thread is within an observed change.
  std::mutex& mutex() { return mutex_; }

  /// Reports changes to `observer` from now on, beginning with the present count; nullptr ends the reports.
  /// Returns false, and changes nothing, if there is another observer. After observe(nullptr) returns, no
  /// call to the old observer is running or will come.
  bool observe(Observer* observer) {
    std::lock_guard lock(mutex_);
    if (observer && observer_) return false;
    observer_ = observer;
    observed_.store(observer != nullptr, std::memory_order_release);
    if (observer) observer->changed(current());
    return true;
  }

 private:
  /// Returns the count after the addition, or -1 if the limit forbids the addition.
  int64_t add_if_allowed(int64_t bytes) {
    int64_t before = current_.load(std::memory_order_relaxed);
    // Compares and swaps rather than adding and subtracting: a refused request must not raise the peak.
    do {
      const int64_t limit = limit_.load(std::memory_order_relaxed);
      if (limit > 0 && before + bytes > limit) return -1;
    } while (!current_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
    raise_peak(before + bytes);
    return before + bytes;
  }

  void raise_peak(int64_t value) {
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < value && !peak_.compare_exchange_weak(peak, value, std::memory_order_relaxed)) {
    }
  }

  std::atomic<int64_t> current_{0};
  std::atomic<int64_t> peak_{0};
  std::atomic<int64_t> limit_{0};  // 0: no limit
  std::atomic<bool> observed_{false};
  std::mutex mutex_;  // orders the observer's calls
  Observer* observer_ = nullptr;
};

}  // namespace palimpsest::memory
