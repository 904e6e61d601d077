#pragma once

#include <utility>

namespace palimpsest {

/// This thread's value of compute_in_f32(). The dynamic linker merges inline variables, so the program and
/// all of its shared libraries see the same variable.
inline thread_local bool compute_in_f32_now = false;

/// Returns whether products of 16-bit tensors are computed on f32 copies of the operands: 16-bit storage, f32
/// arithmetic, for processors without fast 16-bit arithmetic ("pseudo FP16"). amp::AutocastGuard sets the
/// flag, the operators of ops read it, and memory::recompute gives the second run the flag of the first.
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 4.
inline bool compute_in_f32() noexcept {
  return compute_in_f32_now;
}

/// Sets the flag for this thread and returns its previous value.
inline bool set_compute_in_f32(bool on) noexcept {
  return std::exchange(compute_in_f32_now, on);
}

}  // namespace palimpsest
