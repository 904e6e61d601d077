#include "palimpsest/memory/recompute/saved_tensor_hooks.h"

#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace palimpsest::memory {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

thread_local SavedTensorSink* current_sink = nullptr;
thread_local bool probing = false, reached = false;

/// Stands before the engine that runs backward, to override get_default_saved_variable_hooks(). The engine's
/// other functions are not virtual (callbacks after backward, the validity of checkpoints); they work on the
/// thread's current backward pass, whichever engine they are called on.
class EngineWithHooks final : public Engine {
 public:
  EngineWithHooks() = default;

  void stand_before(Engine& engine) { behind_ = &engine; }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return behind().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      std::shared_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return behind().execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
  }

  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return behind().make_anomaly_metadata();
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (probing) {
      reached = true;
      return nullptr;
    }
    return current_sink ? current_sink->next() : behind().get_default_saved_variable_hooks();
  }

 private:
  Engine& behind() const { return *behind_; }

  std::atomic<Engine*> behind_{nullptr};
};

EngineWithHooks& engine_with_hooks() {
  // Never destroyed: at the end of the program other threads may still be in a backward pass.
  static auto* const engine = new EngineWithHooks;
  return *engine;
}

/// True if libtorch asks engine_with_hooks() for the hooks of a tensor that is saved now.
bool in_front() {
  probing = true;
  reached = false;
  Engine::get_default_engine().get_default_saved_variable_hooks();
  probing = false;
  return reached;
}

/// Checks each time, because Python's engine takes the first place if it is loaded after ours. An engine that
/// calls ours (from another copy of this library, for example) stays in front: otherwise the two engines
/// would call each other for ever.
void stand_in_front() {
  if (in_front()) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (in_front()) return;
  engine_with_hooks().stand_before(Engine::get_default_engine());
  torch::autograd::set_default_engine_stub(+[]() -> Engine& { return engine_with_hooks(); });
}

}  // namespace

SavedTensorSinkGuard::SavedTensorSinkGuard(SavedTensorSink& sink) {
  stand_in_front();
  before_ = std::exchange(current_sink, &sink);
}

SavedTensorSinkGuard::~SavedTensorSinkGuard() {
  current_sink = before_;
}

std::unique_ptr<SavedVariableHooks> saved_tensor_hooks() {
  return Engine::get_default_engine().get_default_saved_variable_hooks();
}

}  // namespace palimpsest::memory
