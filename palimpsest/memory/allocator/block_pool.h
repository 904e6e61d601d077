#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace palimpsest::memory {

/// Takes blocks of memory from the system, and keeps freed large blocks for the next request of their size
/// class.
///
/// Why: glibc maps a large block at every malloc and unmaps it at every free, and the kernel zeroes each page
/// at its first touch: a quarter of the time of a training step.
///
/// Bound: live and retained large blocks together never exceed bound_bytes() = 1.25 times the highest live
/// bytes since the start (or the last release()) + 64 MiB. The pool gives back the blocks that were unused
/// for longest. The additional quarter is for steps whose block sizes change all the time.
///
/// Huge pages (madvise) did not pay: with retained blocks a convolutional step took 169 to 173 ms with them
/// and 168 ms without, and the first step took longer.
///
/// Requests of up to 64 KiB go to the system, whose malloc serves them from its own lists. Under
/// PALIMPSEST_ADDRESS_SANITIZER all requests go to the system, unrounded: the pool would hide a use after
/// free and an overrun from the sanitizer.
class BlockPool {
 public:
  /// The first 64 bytes of every block; the data follows, aligned to 64 bytes.
  struct alignas(64) Header {
    int64_t asked_bytes = 0;  ///< the pool's user sets and reads it
    int64_t block_bytes = 0;  ///< of the whole block with its header; 0: small, not pooled
    int32_t size_class = 0;
    bool background = false;  ///< of a background thread; the pool's user sets and reads it
    // Links of a retained block: within its class, newest first, and by age over all classes.
    Header* class_next = nullptr;
    Header* class_previous = nullptr;
    Header* older = nullptr;
    Header* newer = nullptr;
  };
  static_assert(sizeof(Header) == 64);

  /// Returns a block with room for `bytes` after its header, or nullptr if the system has no memory even
  /// after release().
  Header* take(int64_t bytes);
  /// Frees a block from take().
  void give(Header* block);
  /// Gives every retained block back to the system and forgets the highest live bytes.
  void release();

  /// For a fork: no thread is within the pool.
  std::mutex& mutex() { return mutex_; }

  int64_t live_bytes() const;      ///< in large blocks, with headers and rounding
  int64_t retained_bytes() const;  ///< in large blocks
  int64_t bound_bytes() const;

  static constexpr int64_t kSmallBytes = 64 * 1024;
  static constexpr int64_t kSlackBytes = int64_t{64} << 20;

 private:
  // Eight classes per power of two: 64 KiB, 72, 80, ..., 128, 144, ... At most 1/8 of a block, its end, is
  // unused. The end is never touched, so the system gives it at most one page of memory.
  static constexpr int kClasses = 8 * 48;

  static int size_class(int64_t bytes);
  static int64_t class_bytes(int size_class);
  int64_t bound_locked() const { return highest_live_ + highest_live_ / 4 + kSlackBytes; }
  Header* pop(int size_class);
  void unlink(Header* block);
  Header* evict_down_to_bound();

  mutable std::mutex mutex_;  // guards all members below; not held while the system is called
  Header* classes_[kClasses] = {};
  Header* oldest_ = nullptr;
  Header* newest_ = nullptr;
  int64_t live_ = 0;
  int64_t retained_ = 0;
  int64_t highest_live_ = 0;
};

}  // namespace palimpsest::memory
