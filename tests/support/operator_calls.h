#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace palimpsest::testing {

/// Counts the calls of libtorch's operators on all threads, while it is alive. A GPU executes the same calls
/// as the CPU: so a test without one sees where the host would wait for it. One at a time.
class OperatorCalls {
 public:
  OperatorCalls() {
    instance() = this;
    handle_ =
        at::addGlobalCallback(at::RecordFunctionCallback(
                                  [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
                                    if (OperatorCalls* const counter = instance()) counter->add(call);
                                    return nullptr;
                                  })
                                  .needsInputs(true)
                                  .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCalls() {
    at::removeCallback(handle_);
    instance() = nullptr;
  }
  OperatorCalls(const OperatorCalls&) = delete;
  OperatorCalls& operator=(const OperatorCalls&) = delete;

  /// Returns the calls of an operator: "aten::mul".
  int64_t count(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(name);
    return found == counts_.end() ? 0 : found->second;
  }
  /// Returns the calls for which the host waits on a GPU: a value of a tensor, a tensor whose size is a
  /// value, or a copy between host and device that is not non_blocking.
  int64_t waits() const {
    int64_t sum = waiting_copies_;
    for (const char* name : kWaiting) sum += count(name);
    return sum;
  }
  /// Returns the operators of waits(), for messages: "aten::nonzero 2, ".
  std::string text() const {
    std::string text = waiting_copies_ > 0 ? "copies " + std::to_string(waiting_copies_) + ", " : "";
    for (const char* name : kWaiting)
      if (const int64_t calls = count(name); calls > 0)
        text += std::string(name) + " " + std::to_string(calls) + ", ";
    return text;
  }

 private:
  // aten::item calls aten::_local_scalar_dense. aten::index by a mask calls aten::nonzero.
  static constexpr const char* kWaiting[] = {"aten::_local_scalar_dense",
                                             "aten::nonzero",
                                             "aten::masked_select",
                                             "aten::bincount",
                                             "aten::equal",
                                             "aten::_unique2",
                                             "aten::unique_consecutive"};

  static std::atomic<OperatorCalls*>& instance() {
    static std::atomic<OperatorCalls*> counter{nullptr};
    return counter;
  }

  void add(const at::RecordFunction& call) {
    const std::string name = call.name();
    const std::lock_guard lock(mutex_);
    ++counts_[name];
    if (name != "aten::copy_") return;
    const auto inputs = call.inputs();  // self, source, non_blocking
    if (inputs.size() < 2 || !inputs[0].isTensor() || !inputs[1].isTensor()) return;
    const bool crosses = inputs[0].toTensor().is_cpu() != inputs[1].toTensor().is_cpu();
    if (crosses && !(inputs.size() > 2 && inputs[2].isBool() && inputs[2].toBool())) ++waiting_copies_;
  }

  at::CallbackHandle handle_{};
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
  std::atomic<int64_t> waiting_copies_{0};
};

}  // namespace palimpsest::testing
