#pragma once

#include <cstddef>

namespace palimpsest::cuda_emulator {

/// A function call with its own stack, which can suspend itself and be resumed. All fibers run on the OS
/// thread that resumes them. AddressSanitizer and ThreadSanitizer are told about every switch;
/// ThreadSanitizer takes each started fiber for a thread without any order of events relative to other
/// threads.
class Fiber {
 public:
  using Entry = void (*)(void* argument);

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next resume() call entry(argument), which must not throw.
  void start(Entry entry, void* argument);
  /// Runs the fiber until it suspends itself or its entry returns. Must be called outside of all fibers.
  void resume();
  /// Returns to the caller of resume(). Must be called from this fiber.
  void suspend();
  /// Discards the stack, after the entry returned or before; destructors do not run.
  /// `in_order`: ThreadSanitizer orders all that the fiber did before what follows.
  void abandon(bool in_order);

 private:
  static constexpr std::size_t kStackBytes = 128 * 1024;
  /// Bytes of the stack that this fiber uses. Each fiber's stack begins at another offset in its page; with
  /// equal offsets all stacks would share a few cache sets (tests_cuda_kernels took 87 s instead of 76 s).
  std::size_t own_bytes() const { return kStackBytes - offset_; }

  [[noreturn]] void run();
  void switch_out(bool for_good);
  static void trampoline();

  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  void* mapping_ = nullptr;  // an inaccessible guard page, then the stack
  char* stack_ = nullptr;
  std::size_t offset_ = 0;
  bool ended_ = false;
  void* context_ = nullptr;     // the stack pointer while suspended; with swapcontext a ucontext_t
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void* tsan_fiber_ = nullptr;
};

}  // namespace palimpsest::cuda_emulator
