#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace palimpsest::memory {

/// Blocks of memory from the system, with freed large ones kept for the next request of their size class.
///
/// Why: glibc maps a large block afresh at every malloc and unmaps it at every free; the kernel then zeroes
/// every page at its first touch, which costs a training step about a quarter of its time.
///
/// Bound: live and retained large blocks together never exceed bound_bytes() = 1.25 times the highest live
/// bytes since the start (or the last release()) + 64 MiB. What is above is given back, the longest unused
/// block first. The quarter is for steps whose blocks have other sizes at other times.
///
/// Huge pages (madvise) were tried and did not pay: once blocks are retained, a convolutional step took 169
/// to 173 ms with them and 168 without, and the step that touches them first took longer.
///
/// Small requests (up to 64 KiB) go to the system as they are: malloc serves those from its own lists.
/// Under PALIMPSEST_ADDRESS_SANITIZER all requests do, unrounded, or the pool would hide a use after free and
/// an overrun from the sanitizer.
class BlockPool {
 public:
  /// Stands at the start of every block, in the 64 bytes before the data (so that data is 64-byte aligned).
  struct alignas(64) Header {
    int64_t asked_bytes = 0;  ///< for the user of the pool
    int64_t block_bytes = 0;  ///< of the whole block, header included; 0: small, not pooled
    int32_t size_class = 0;
    // Links of a retained block: in its class (newest first) and by age over all classes.
    Header* class_next = nullptr;
    Header* class_previous = nullptr;
    Header* older = nullptr;
    Header* newer = nullptr;
  };
  static_assert(sizeof(Header) == 64);

  /// A block with room for `bytes` behind its header; nullptr when the system has none, even after release().
  Header* take(int64_t bytes);
  void give(Header* block);
  /// Gives every retained block back to the system and forgets the highest live bytes.
  void release();

  int64_t live_bytes() const;      ///< in large blocks, headers and rounding included
  int64_t retained_bytes() const;  ///< in large blocks
  int64_t bound_bytes() const;

  static constexpr int64_t kSmallBytes = 64 * 1024;
  static constexpr int64_t kSlackBytes = int64_t{64} << 20;

 private:
  // Classes are eighths of a power of two: 64 KiB, 72, 80, ..., 128, 144, ...: at most 1/8 of a block is
  // unused, and that end of it is never touched, so it takes no memory beyond its first page.
  static constexpr int kClasses = 8 * 48;

  static int size_class(int64_t bytes);
  static int64_t class_bytes(int size_class);
  int64_t bound_locked() const { return highest_live_ + highest_live_ / 4 + kSlackBytes; }
  Header* pop(int size_class);
  void unlink(Header* block);
  Header* evict_down_to_bound();

  mutable std::mutex mutex_;  // of all below; the system is called outside of it
  Header* classes_[kClasses] = {};
  Header* oldest_ = nullptr;
  Header* newest_ = nullptr;
  int64_t live_ = 0;
  int64_t retained_ = 0;
  int64_t highest_live_ = 0;
};

}  // namespace palimpsest::memory
