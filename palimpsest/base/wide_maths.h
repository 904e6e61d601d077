#pragma once

#include <utility>

namespace palimpsest {

/// Of this thread; one for the program and all shared libraries in it, as the dynamic linker joins inline
/// variables.
inline thread_local bool wide_maths_now = false;

/// Whether products of 16-bit tensors on this thread are computed on f32 copies of them: 16-bit storage, f32
/// maths, for processors without fast 16-bit arithmetic ("pseudo FP16", Micikevicius et al., "Mixed Precision
/// Training", ICLR 2018, section 4). amp::AutocastGuard says so, the operators of ops read it, and a segment
/// that is run again (memory/recompute.h) finds it as in its first run.
inline bool wide_maths() noexcept {
  return wide_maths_now;
}

/// Says so on this thread; what was said before.
inline bool set_wide_maths(bool wide) noexcept {
  return std::exchange(wide_maths_now, wide);
}

}  // namespace palimpsest
