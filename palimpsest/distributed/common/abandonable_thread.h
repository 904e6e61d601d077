#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace palimpsest::distributed {

/// Runs calls one after another on a thread of its own. Whoever waits for a call can give it up; the thread
/// then goes on alone until the call ends, or the process.
class AbandonableThread {
 public:
  using Clock = std::chrono::steady_clock;

  explicit AbandonableThread(const char* name);
  /// Joins the thread, unless a call was given up.
  ~AbandonableThread();
  AbandonableThread(const AbandonableThread&) = delete;
  AbandonableThread& operator=(const AbandonableThread&) = delete;

  /// Returns what `function` returns, or throws what it throws. Returns nothing if the call was given up: by
  /// abandon(), `limit` after it was asked for, or when gives_up(), which is asked ten times per second, is true. Once a
  /// call was given up no other is made.
  ///
  /// `function` may outlive the caller: it must own all that it refers to.
  template <class Result>
  std::optional<Result> call(std::function<Result()> function, std::chrono::milliseconds limit,
                             const std::function<bool()>& gives_up = {}) {
    const auto result = std::make_shared<std::optional<Result>>();
    if (!run([result, function = std::move(function)] { *result = function(); }, limit, gives_up))
      return std::nullopt;
    return std::move(*result);
  }

  /// Gives up the calls that run or wait, and all later ones.
  void abandon() noexcept;
  /// Gives up the calls that run or wait `limit` after they were asked for, if that is earlier than their own
  /// limit.
  void shorten(std::chrono::milliseconds limit) noexcept;

 private:
  struct Shared;
  bool run(std::function<void()> function, std::chrono::milliseconds limit,
           const std::function<bool()>& gives_up);

  const std::shared_ptr<Shared> shared_;
};

}  // namespace palimpsest::distributed
