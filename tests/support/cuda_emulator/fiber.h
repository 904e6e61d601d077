#pragma once

#include <cstddef>

namespace palimpsest::cuda_emulator {

/// A computation with a stack of its own that can be left in the middle and taken up again. All fibers run on
/// the one OS thread that resumes them. AddressSanitizer and ThreadSanitizer are told of every switch; to the
/// latter each started fiber is a thread that shares no order of events with the others.
class Fiber {
 public:
  using Entry = void (*)(void* argument);

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next resume() calls entry(argument), which must not throw.
  void start(Entry entry, void* argument);
  /// Runs the fiber until it suspends itself or its entry returns. From outside of any fiber.
  void resume();
  /// Goes back to resume()'s caller. From inside this fiber.
  void suspend();
  /// Forgets what is on the stack: after the entry returned, or in the middle of it; destructors do not run.
  /// `in_order`: to ThreadSanitizer, all that the fiber did comes before what follows here.
  void abandon(bool in_order);

 private:
  static constexpr std::size_t kStackBytes = 128 * 1024;
  /// Of the stack, those that this fiber uses. Tops that lay equally far into their pages would share a few
  /// sets of the caches (tests_cuda_kernels: 87 -> 76 s).
  std::size_t own_bytes() const { return kStackBytes - offset_; }

  [[noreturn]] void run();
  void switch_out(bool for_good);
  static void trampoline();

  Entry entry_ = nullptr;
  void* argument_ = nullptr;
  void* mapping_ = nullptr;  // a page that may not be touched, then the stack
  char* stack_ = nullptr;
  std::size_t offset_ = 0;
  bool ended_ = false;
  void* context_ = nullptr;     // the stack pointer while suspended (a ucontext_t on other processors)
  void* fake_stack_ = nullptr;  // AddressSanitizer's
  void* tsan_fiber_ = nullptr;
};

}  // namespace palimpsest::cuda_emulator
