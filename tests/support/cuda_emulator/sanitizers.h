#pragma once

// The emulator's own sources are compiled without the sanitizer, which should not watch the scheduler. So the
// build says which sanitizer the kernels have: PALIMPSEST_ASAN=1 or PALIMPSEST_TSAN=1.
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

/// Makes any access to these bytes an error for AddressSanitizer, or allows it again.
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

/// ThreadSanitizer orders what the current fiber did before release(object) before what follows an
/// acquire(object).
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
