#include "tests/support/cuda_emulator/fiber.h"

#include "tests/support/cuda_emulator/sanitizers.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <new>

// A thousand threads meet at every barrier. On x86-64 our own switch takes 3 ns; swapcontext, which asks the
// kernel for the signal mask, takes 300 ns.
#if !defined(__x86_64__) && !defined(PALIMPSEST_SWAPCONTEXT)
#define PALIMPSEST_SWAPCONTEXT
#endif
#ifdef PALIMPSEST_SWAPCONTEXT
#include <ucontext.h>
#endif

namespace palimpsest::cuda_emulator {
namespace {

constexpr std::size_t kGuardBytes = 4096;  // a page
// The offset in its page differs by kStep from one stack to the next: an odd number of cache lines, so that
// all 64 cache lines of a page are used equally.
constexpr std::size_t kStep = 7 * 64;
// Stack bytes that trampoline() and run() need at most.
constexpr std::size_t kFirstFrames = 1024;

Fiber* current = nullptr;
// The context of resume()'s caller while a fiber runs.
void* outside_context = nullptr;
[[maybe_unused]] void* outside_fake_stack = nullptr;
[[maybe_unused]] const void* outside_stack = nullptr;
[[maybe_unused]] std::size_t outside_stack_bytes = 0;
[[maybe_unused]] void* outside_tsan_fiber = nullptr;

}  // namespace

#ifndef PALIMPSEST_SWAPCONTEXT
// Pushes the registers that a call preserves, writes the stack pointer to *save, and continues on the stack
// `load` with its registers. Floating-point modes are not saved: kernels never change them.
extern "C" void palimpsest_switch_stack(void** save, void* load);
asm(R"(
.text
.type palimpsest_switch_stack, @function
palimpsest_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size palimpsest_switch_stack, .-palimpsest_switch_stack
)");
#else
static void palimpsest_switch_stack(void** save, void* load) {
  static ucontext_t outside;
  if (!*save) *save = &outside;
  swapcontext(static_cast<ucontext_t*>(*save), static_cast<ucontext_t*>(load));
}
#endif

Fiber::Fiber() {
  // A system call, because ThreadSanitizer would take mmap for a write by this thread to all of the stack.
  const long mapped = syscall(SYS_mmap, nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == -1) throw std::bad_alloc();
  mapping_ = reinterpret_cast<void*>(mapped);
  mprotect(mapping_, kGuardBytes, PROT_NONE);
  stack_ = static_cast<char*>(mapping_) + kGuardBytes;
  static std::size_t made = 0;
  offset_ = made++ * kStep % kGuardBytes;
#ifdef PALIMPSEST_SWAPCONTEXT
  context_ = new ucontext_t;
#endif
}

Fiber::~Fiber() {
#ifdef PALIMPSEST_SWAPCONTEXT
  delete static_cast<ucontext_t*>(context_);
#endif
  munmap(mapping_, kGuardBytes + kStackBytes);
}

void Fiber::start(Entry entry, void* argument) {
  entry_ = entry;
  argument_ = argument;
  fake_stack_ = nullptr;
  ended_ = false;
#ifdef PALIMPSEST_TSAN
  // Not earlier: a new fiber may get the identity of a destroyed one, and would then be taken for the thread
  // that wrote what it reads.
  if (tsan_fiber_) __tsan_destroy_fiber(tsan_fiber_);
  tsan_fiber_ = __tsan_create_fiber(0);
#endif
#ifndef PALIMPSEST_SWAPCONTEXT
  // The stack as palimpsest_switch_stack leaves it: six registers, then the return address at an address that
  // is aligned as after a call.
  auto* top = reinterpret_cast<std::uintptr_t*>(stack_ + own_bytes()) - 2;
  *top = reinterpret_cast<std::uintptr_t>(&Fiber::trampoline);
  for (int i = 0; i < 6; ++i) *--top = 0;
  context_ = top;
#else
  auto* context = static_cast<ucontext_t*>(context_);
  getcontext(context);
  context->uc_stack.ss_sp = stack_;
  context->uc_stack.ss_size = own_bytes();
  context->uc_link = nullptr;
  makecontext(context, &Fiber::trampoline, 0);
#endif
}

void Fiber::trampoline() {
  current->run();
}

void Fiber::run() {
#ifdef PALIMPSEST_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &outside_stack, &outside_stack_bytes);
#endif
  entry_(argument_);
  ended_ = true;
  switch_out(true);
  std::abort();  // unreachable: a fiber that has ended is never resumed
}

void Fiber::resume() {
  current = this;
#ifdef PALIMPSEST_ASAN
  __sanitizer_start_switch_fiber(&outside_fake_stack, stack_, kStackBytes);
#endif
#ifdef PALIMPSEST_TSAN
  outside_tsan_fiber = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_fiber_, __tsan_switch_to_fiber_no_sync);
#endif
  palimpsest_switch_stack(&outside_context, context_);
#ifdef PALIMPSEST_ASAN
  __sanitizer_finish_switch_fiber(outside_fake_stack, nullptr, nullptr);
#endif
}

void Fiber::suspend() {
  switch_out(false);
#ifdef PALIMPSEST_ASAN
  __sanitizer_finish_switch_fiber(fake_stack_, &outside_stack, &outside_stack_bytes);
#endif
}

void Fiber::switch_out(bool for_good) {
#ifdef PALIMPSEST_ASAN
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fake_stack_, outside_stack, outside_stack_bytes);
#endif
#ifdef PALIMPSEST_TSAN
  __tsan_switch_to_fiber(outside_tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
  palimpsest_switch_stack(&context_, outside_context);
}

void Fiber::abandon([[maybe_unused]] bool in_order) {
  // Frames that did not return still have their red zones. A fiber that has ended has only its first frames.
  const std::size_t bytes = ended_ ? kFirstFrames : own_bytes();
  allow(stack_ + own_bytes() - bytes, bytes);
#ifdef PALIMPSEST_TSAN
  if (in_order) {
    void* const outside = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_fiber_, 0);
    __tsan_switch_to_fiber(outside, 0);
  }
#endif
}

}  // namespace palimpsest::cuda_emulator
