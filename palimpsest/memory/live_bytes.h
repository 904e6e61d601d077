#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace palimpsest::memory {

/// Counts live bytes, their peak and their limit over all threads, without a lock unless somebody observes.
/// The peak is exact: every value that the count rises to is the result of one atomic addition, and the
/// thread that made the addition raises the peak to it.
class LiveBytes {
 public:
  /// Hears of every change, one at a time and in order. Must not allocate through the allocator that it
  /// observes.
  class Observer {
   public:
    virtual void changed(int64_t current) = 0;

   protected:
    ~Observer() = default;
  };

  /// Adds `bytes`, or returns false and adds nothing if that would bring the count above the limit.
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

  void reset_peak() {
    peak_.store(current(), std::memory_order_relaxed);
    raise_peak(current());  // an addition that raised the old peak between the two is not lost
  }

  /// Starts (or with nullptr ends) the observation, and tells the observer the count at once. Returns false
  /// when there is an observer already. On return after nullptr no call to the old observer is running or
  /// will come.
  bool observe(Observer* observer) {
    std::lock_guard lock(mutex_);
    if (observer && observer_) return false;
    observer_ = observer;
    observed_.store(observer != nullptr, std::memory_order_release);
    if (observer) observer->changed(current());
    return true;
  }

 private:
  /// Returns the count after the addition, or -1 when the limit forbids it.
  int64_t add_if_allowed(int64_t bytes) {
    int64_t before = current_.load(std::memory_order_relaxed);
    // Compare and swap rather than add and take back: a refused request must not show in anyone's peak.
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
  std::atomic<int64_t> limit_{0};  // 0: none
  std::atomic<bool> observed_{false};
  std::mutex mutex_;  // orders the observer's calls
  Observer* observer_ = nullptr;
};

}  // namespace palimpsest::memory
