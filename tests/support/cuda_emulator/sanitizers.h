#pragma once

// The emulator's own units are compiled without the sanitizer, which would watch the scheduler, too; so the
// build says which one it is: PALIMPSEST_ASAN=1 or PALIMPSEST_TSAN=1.
#ifdef PALIMPSEST_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef PALIMPSEST_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#include <cstddef>

namespace palimpsest::cuda_emulator {

#ifdef PALIMPSEST_TSAN
inline constexpr bool kTsan = true;
#else
inline constexpr bool kTsan = false;
#endif

/// To AddressSanitizer, any access to these bytes is an error (or no longer one).
inline void forbid(void* begin, std::size_t bytes) {
#ifdef PALIMPSEST_ASAN
  __asan_poison_memory_region(begin, bytes);
#endif
}
inline void allow(void* begin, std::size_t bytes) {
#ifdef PALIMPSEST_ASAN
  __asan_unpoison_memory_region(begin, bytes);
#endif
}

/// To ThreadSanitizer, all that the fiber at hand did so far comes before whatever follows an acquire of the
/// same object.
inline void release(void* object) {
#ifdef PALIMPSEST_TSAN
  __tsan_release(object);
#endif
}
inline void acquire(void* object) {
#ifdef PALIMPSEST_TSAN
  __tsan_acquire(object);
#endif
}

}  // namespace palimpsest::cuda_emulator
