#include "palimpsest/memory/allocator/block_pool.h"

#include <bit>
#include <cstdlib>
#include <new>
#include <utility>

namespace palimpsest::memory {
namespace {

using Header = BlockPool::Header;

constexpr std::size_t kAlignment = 64;  // a cache line, and the widest vector

Header* from_system(int64_t bytes) {
  void* block = nullptr;
  if (posix_memalign(&block, kAlignment, static_cast<std::size_t>(bytes)) != 0) return nullptr;
  return new (block) Header;
}

/// Frees a chain of blocks linked by class_next.
void to_system(Header* chain) {
  while (chain) std::free(std::exchange(chain, chain->class_next));
}

}  // namespace

int BlockPool::size_class(int64_t bytes) {
  const auto last = static_cast<uint64_t>(bytes - 1);              // a power of two is the last of its octave
  const int octave = static_cast<int>(std::bit_width(last)) - 17;  // 0: (64 KiB, 128 KiB]
  return octave * 8 + static_cast<int>((last >> (octave + 13)) & 7);
}

int64_t BlockPool::class_bytes(int size_class) {
  const int octave = size_class / 8;
  return int64_t{9 + size_class % 8} << (octave + 13);
}

BlockPool::Header* BlockPool::take(int64_t bytes) {
  bytes += static_cast<int64_t>(sizeof(Header));
#ifdef PALIMPSEST_ADDRESS_SANITIZER
  return from_system(bytes);
#else
  if (bytes <= kSmallBytes) {
    Header* block = from_system(bytes);
    if (block) return block;
    release();
    return from_system(bytes);
  }
  const int of_class = size_class(bytes);
  if (of_class >= kClasses) return nullptr;
  const int64_t block_bytes = class_bytes(of_class);
  Header* surplus = nullptr;
  {
    std::lock_guard lock(mutex_);
    live_ += block_bytes;
    if (live_ > highest_live_) highest_live_ = live_;
    if (Header* block = pop(of_class)) return block;
    surplus = evict_down_to_bound();
  }
  to_system(surplus);
  Header* block = from_system(block_bytes);
  if (!block) {
    release();
    block = from_system(block_bytes);
  }
  if (!block) {
    std::lock_guard lock(mutex_);
    live_ -= block_bytes;
    highest_live_ = live_;  // as after release(), without the failed request
    return nullptr;
  }
  block->block_bytes = block_bytes;
  block->size_class = of_class;
  return block;
#endif
}

void BlockPool::give(Header* block) {
  if (block->block_bytes == 0) {
    std::free(block);
    return;
  }
  Header* surplus = nullptr;
  {
    std::lock_guard lock(mutex_);
    live_ -= block->block_bytes;
    retained_ += block->block_bytes;
    block->class_previous = nullptr;
    block->class_next = classes_[block->size_class];
    if (block->class_next) block->class_next->class_previous = block;
    classes_[block->size_class] = block;
    block->newer = nullptr;
    block->older = newest_;
    (newest_ ? newest_->newer : oldest_) = block;
    newest_ = block;
    surplus = evict_down_to_bound();
  }
  to_system(surplus);
}

void BlockPool::release() {
  Header* all = nullptr;
  {
    std::lock_guard lock(mutex_);
    while (oldest_) {
      Header* block = oldest_;
      unlink(block);
      block->class_next = std::exchange(all, block);
    }
    highest_live_ = live_;
  }
  to_system(all);
}

BlockPool::Header* BlockPool::pop(int size_class) {
  Header* block = classes_[size_class];  // the newest of its class: the likeliest to be in cache
  if (block) unlink(block);
  return block;
}

void BlockPool::unlink(Header* block) {
  (block->class_previous ? block->class_previous->class_next : classes_[block->size_class]) =
      block->class_next;
  if (block->class_next) block->class_next->class_previous = block->class_previous;
  (block->older ? block->older->newer : oldest_) = block->newer;
  (block->newer ? block->newer->older : newest_) = block->older;
  retained_ -= block->block_bytes;
}

/// Unlinks the oldest blocks until the bound holds; returns them chained by class_next.
BlockPool::Header* BlockPool::evict_down_to_bound() {
  Header* chain = nullptr;
  while (oldest_ && live_ + retained_ > bound_locked()) {
    Header* block = oldest_;
    unlink(block);
    block->class_next = std::exchange(chain, block);
  }
  return chain;
}

int64_t BlockPool::live_bytes() const {
  std::lock_guard lock(mutex_);
  return live_;
}

int64_t BlockPool::retained_bytes() const {
  std::lock_guard lock(mutex_);
  return retained_;
}

int64_t BlockPool::bound_bytes() const {
  std::lock_guard lock(mutex_);
  return bound_locked();
}

}  // namespace palimpsest::memory
