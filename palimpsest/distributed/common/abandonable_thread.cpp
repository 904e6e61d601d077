#include "palimpsest/distributed/common/abandonable_thread.h"

#include <c10/util/thread_name.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace palimpsest::distributed {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{100};

}  // namespace

struct AbandonableThread::Shared {
  struct Call {
    std::function<void()> function;
    bool ended = false;
    std::exception_ptr failure;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Call>> calls;
  bool abandoned = false, stopping = false;
  std::chrono::milliseconds longest = std::chrono::milliseconds::max();
  std::thread thread;

  /// The body of the thread.
  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || abandoned || !calls.empty(); });
      if (stopping || abandoned) return;
      const auto call = calls.front();
      calls.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        call->function();
      } catch (...) {
        failure = std::current_exception();
      }
      call->function = nullptr;  // what it owns ends here, and not with a caller that may be gone
      lock.lock();
      call->failure = failure;
      call->ended = true;
      changed.notify_all();
    }
  }
};

AbandonableThread::AbandonableThread(const char* name) : shared_(std::make_shared<Shared>()) {
  shared_->thread = std::thread([shared = shared_, name] {
    c10::setThreadName(name);
    shared->serve();
  });
}

AbandonableThread::~AbandonableThread() {
  bool abandoned = false;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    abandoned = shared_->abandoned;
  }
  shared_->changed.notify_all();
  if (abandoned)
    shared_->thread.detach();
  else
    shared_->thread.join();
}

void AbandonableThread::abandon() noexcept {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->abandoned = true;
  }
  shared_->changed.notify_all();
}

void AbandonableThread::shorten(std::chrono::milliseconds limit) noexcept {
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->longest = std::min(shared_->longest, limit);
  }
  shared_->changed.notify_all();
}

bool AbandonableThread::run(std::function<void()> function, std::chrono::milliseconds limit,
                            const std::function<bool()>& gives_up) {
  const auto begin = Clock::now();
  const auto call = std::make_shared<Shared::Call>();
  call->function = std::move(function);
  std::unique_lock lock(shared_->mutex);
  if (shared_->abandoned) return false;
  shared_->calls.push_back(call);
  shared_->changed.notify_all();
  while (!call->ended && !shared_->abandoned) {
    const auto end = begin + std::min(limit, shared_->longest);
    if (Clock::now() >= end || (gives_up && gives_up())) {
      shared_->abandoned = true;
      shared_->changed.notify_all();
    } else {
      shared_->changed.wait_until(lock, gives_up ? std::min(end, Clock::now() + kBetweenLooks) : end);
    }
  }
  if (!call->ended) return false;
  if (call->failure) std::rethrow_exception(call->failure);
  return true;
}

}  // namespace palimpsest::distributed
