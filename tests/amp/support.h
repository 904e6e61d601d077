#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <string>

namespace palimpsest::amp::testing {

/// Counts the calls of one of libtorch's operators, "aten::_to_copy" say, until the end of the scope: on all
/// threads.
class CallCounter {
 public:
  explicit CallCounter(std::string name) {
    wanted() = std::move(name);
    count() = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
          if (wanted() == f.name()) ++count();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CallCounter() { at::removeCallback(handle_); }
  CallCounter(const CallCounter&) = delete;
  CallCounter& operator=(const CallCounter&) = delete;

  int calls() const { return count(); }

 private:
  static std::string& wanted() {
    static std::string name;
    return name;
  }
  static std::atomic<int>& count() {
    static std::atomic<int> calls;
    return calls;
  }

  at::CallbackHandle handle_;
};

}  // namespace palimpsest::amp::testing
