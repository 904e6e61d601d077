#pragma once

#include <cstddef>
#include <new>

namespace palimpsest::testing {

/// Allocates memory that begins on a cache line. Where a tensor begins decides how many values precede its first vector,
/// and whether kernels write it past the caches.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U>
  explicit LineAllocator(const LineAllocator<U>&) {}
  T* allocate(std::size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* memory, std::size_t) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const = default;
};

}  // namespace palimpsest::testing
