#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

/// Default hooks for the tensors that autograd saves, in C++: what `torch.autograd.graph.saved_tensors_hooks`
/// is in Python. libtorch asks its engine for such hooks whenever an operation saves a tensor for backward,
/// and only Python's engine has any. The first guard below therefore puts a thin engine before the one in
/// use: it hands out the hooks of this thread's innermost guard, and leaves everything else, all of backward
/// included, to the engine behind it. Where Python is loaded, its hooks keep working outside our guards.
namespace palimpsest::memory {

/// Decides what becomes of the tensors saved for backward while a guard names it.
class SavedTensorSink {
 public:
  virtual ~SavedTensorSink() = default;
  /// The hooks of one saved tensor. Autograd calls `call_pack_hook` on them at once with the tensor, keeps
  /// only the hooks, and calls `call_unpack_hook` in backward, on whatever thread that runs. It does no
  /// version check for a tensor with hooks: that is theirs.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> next() = 0;
};

/// Sends what autograd saves on this thread to `sink` until the end of the scope; the innermost guard alone
/// counts.
class SavedTensorSinkGuard {
 public:
  explicit SavedTensorSinkGuard(SavedTensorSink& sink);
  ~SavedTensorSinkGuard();
  SavedTensorSinkGuard(const SavedTensorSinkGuard&) = delete;
  SavedTensorSinkGuard& operator=(const SavedTensorSinkGuard&) = delete;

 private:
  SavedTensorSink* before_;
};

/// The hooks that a tensor saved now on this thread would get: those of the innermost guard, else those of
/// the engine behind (Python's); null where there are none.
std::unique_ptr<torch::autograd::SavedVariableHooks> saved_tensor_hooks();

}  // namespace palimpsest::memory
