#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

/// Hooks in C++ for every tensor that autograd saves, like `torch.autograd.graph.saved_tensors_hooks` in
/// Python. libtorch asks its engine for such hooks whenever an operation saves a tensor for backward, and
/// only Python's engine has any. So the first guard below puts a thin engine before the present engine. The
/// thin engine returns the hooks of this thread's innermost guard, and passes every other call, also all of
/// backward, to the engine behind it. Python's hooks keep working outside of our guards.
namespace palimpsest::memory {

/// Receives the tensors that autograd saves while a guard names this sink.
class SavedTensorSink {
 public:
  virtual ~SavedTensorSink() = default;
  /// Returns the hooks of the next saved tensor. Autograd calls their `call_pack_hook` with the tensor at
  /// once, keeps the hooks only, and calls `call_unpack_hook` in backward, on whatever thread that runs. The
  /// hooks must check the tensor's version: autograd does not, for a tensor with hooks.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> next() = 0;
};

/// Sends the tensors that autograd saves on this thread to `sink` until the end of the scope. If guards nest,
/// the innermost guard counts.
class SavedTensorSinkGuard {
 public:
  explicit SavedTensorSinkGuard(SavedTensorSink& sink);
  ~SavedTensorSinkGuard();
  SavedTensorSinkGuard(const SavedTensorSinkGuard&) = delete;
  SavedTensorSinkGuard& operator=(const SavedTensorSinkGuard&) = delete;

 private:
  SavedTensorSink* before_;
};

/// Returns the hooks for a tensor that is saved now on this thread: from the innermost guard, else from the
/// engine behind (Python's), else null.
std::unique_ptr<torch::autograd::SavedVariableHooks> saved_tensor_hooks();

}  // namespace palimpsest::memory
