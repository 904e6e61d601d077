#include "palimpsest/memory/recompute/segment.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/recomputing.h"
#include "palimpsest/memory/buffer_snapshot.h"

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <exception>
#include <optional>
#include <unordered_set>
#include <utility>

namespace palimpsest::memory {
namespace {

using torch::autograd::Engine;
using torch::autograd::Node;
using torch::autograd::SavedVariableHooks;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::kUsage, "[recompute] " + message);
}

/// Returns the tensor, whose values must still be those of the noted version.
const at::Tensor& unchanged(const Versioned& noted, const std::string& what) {
  if (noted.tensor._version() != noted.version) {
    fail(
        fmt::format("{} of shape [{}] must not change between forward and backward, but was written over; "
                    "write to a clone, or after backward",
                    what, fmt::join(noted.tensor.sizes(), ", ")));
  }
  return noted.tensor;
}

/// Replaces a saved tensor in the graph of the first run.
class Promise final : public SavedVariableHooks {
 public:
  explicit Promise(std::shared_ptr<Segment> segment) : segment_(std::move(segment)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    index_ = segment_->promise(tensor);
    // A parameter is alive anyway: the graph may hold it.
    if (tensor.is_leaf() && tensor.requires_grad()) {
      const auto alias = tensor.detach();
      parameter_ = {alias, alias._version()};
    }
  }

  at::Tensor call_unpack_hook() override {
    return parameter_.tensor.defined() ? unchanged(parameter_, "a parameter or input of a recomputed segment")
                                       : segment_->value(index_);
  }

 private:
  std::shared_ptr<Segment> segment_;
  std::size_t index_ = 0;
  Versioned parameter_;
};

/// Ends the second run of a segment whose first run is not at its end: all that was saved so far is there again.
struct Enough final : std::exception {};

class Collector;

/// Gives a tensor that the second run saves to the Collector, and holds it for the graph of that run, which fn itself
/// may differentiate.
class Collected final : public SavedVariableHooks {
 public:
  explicit Collected(Collector& collector) : collector_(&collector) {}

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override { return unchanged(value_, "a tensor saved for backward"); }

 private:
  Collector* collector_;
  Versioned value_;
};

class Collector final : public SavedTensorSink {
 public:
  /// `last`: throws Enough behind so many tensors; 0: never. A backward pass within fn runs to its end: if the last
  /// tensor is saved there, the next one behind that pass ends the run.
  explicit Collector(std::size_t last) : last_(last), pass_(torch::autograd::get_current_graph_task_id()) {}

  std::unique_ptr<SavedVariableHooks> next() override { return std::make_unique<Collected>(*this); }
  void add(const Versioned& tensor) {
    tensors.push_back(tensor);
    if (last_ > 0 && tensors.size() >= last_ && torch::autograd::get_current_graph_task_id() == pass_)
      throw Enough{};
  }

  std::vector<Versioned> tensors;

 private:
  std::size_t last_;
  int pass_;
};

void Collected::call_pack_hook(const at::Tensor& tensor) {
  const auto alias = tensor.detach();  // shares the version counter
  value_ = {alias, alias._version()};
  // Autograd packs at once, while the collector exists; the hooks may outlive it.
  std::exchange(collector_, nullptr)->add(value_);
}

}  // namespace

Segment::Form::Form(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  sizes = tensor.sizes().vec();
  dtype = tensor.scalar_type();
  device = tensor.device();
}

std::string Segment::Form::text() const {
  if (!dtype) return "undefined";
  return fmt::format("{} of shape [{}] on {}", c10::toString(*dtype), fmt::join(sizes, ", "), device.str());
}

Segment::Segment(Function fn, const Tensors& inputs, const RecomputeOptions& options)
    : fn_(std::move(fn)), buffers_(options.buffers), ambient_state_(inputs, options.replay_random_numbers) {
  const c10::NoGradGuard no_grad;
  for (const auto& tensor : inputs) {
    auto& input = inputs_.emplace_back();
    if (!tensor.defined()) continue;
    if (tensor.is_inference()) {
      fail(fmt::format("input {} was made in inference mode, which no backward pass can use; pass a clone",
                       inputs_.size() - 1));
    }
    input.requires_grad = tensor.requires_grad();
    input.hooks = saved_tensor_hooks();
    if (input.hooks) {
      input.hooks->call_pack_hook(tensor);
    } else {
      const auto alias = tensor.detach();
      input.value = {alias, alias._version()};
    }
  }
}

/// Releases the tensors of a backward pass when it goes.
class Segment::Forgetter {
 public:
  Forgetter(std::weak_ptr<Segment> segment, int pass) : segment_(std::move(segment)), pass_(pass) {}
  ~Forgetter() {
    if (const auto segment = segment_.lock()) segment->forget(pass_);
  }
  Forgetter(const Forgetter&) = delete;
  Forgetter& operator=(const Forgetter&) = delete;

 private:
  std::weak_ptr<Segment> segment_;
  int pass_;
};

Segment::Tensors Segment::first_run(const Tensors& inputs) {
  const auto version = [](const at::Tensor& t) { return t.defined() ? t._version() : int64_t{0}; };
  std::vector<int64_t> before;
  for (const auto& input : inputs) before.push_back(version(input));
  const uint64_t first_node = at::sequence_number::peek();
  Tensors outputs;
  {
    const SavedTensorSinkGuard to_us(*this);
    const SegmentLog::Recording recording(log_);
    outputs = fn_(inputs);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (version(inputs[i]) == before[i]) continue;
    fail(
        fmt::format("fn must not write over its inputs, which backward needs again, but changed input {} of "
                    "shape [{}]; pass a clone, or make the layer that comes first out of place",
                    i, fmt::join(inputs[i].sizes(), ", ")));
  }
  ambient_state_.drop_unused_generators();
  outputs_ = Forms(outputs.begin(), outputs.end());
  note_parameters(outputs, first_node);
  finished_ = true;
  return outputs;
}

std::unique_ptr<SavedVariableHooks> Segment::next() {
  return std::make_unique<Promise>(shared_from_this());
}

std::size_t Segment::promise(const at::Tensor& tensor) {
  saved_.emplace_back(tensor);
  return saved_.size() - 1;
}

void Segment::note_parameters(const Tensors& outputs, uint64_t first_node) {
  const uint64_t this_thread = at::RecordFunction::currentThreadId();
  std::unordered_set<const Node*> seen;
  std::vector<Node*> todo;
  const auto visit = [&](Node* node) {
    if (node && seen.insert(node).second) todo.push_back(node);
  };
  for (const auto& output : outputs) {
    if (output.defined()) visit(output.grad_fn().get());
  }
  while (!todo.empty()) {
    Node* const node = todo.back();
    todo.pop_back();
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      parameters_.push_back({leaf->variable, leaf->variable._version()});
    } else if (node->thread_id() == this_thread && node->sequence_nr() >= first_node) {
      // Others are outside of this segment: older, or of another thread, which has sequence numbers of its own.
      for (const auto& edge : node->next_edges()) visit(edge.function.get());
    }
  }
}

Segment::Tensors Segment::inputs_again() const {
  Tensors again;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const auto& input = inputs_[i];
    at::Tensor tensor = input.hooks
                            ? input.hooks->call_unpack_hook()
                            : unchanged(input.value, fmt::format("input {} of a recomputed segment", i));
    if (tensor.defined()) tensor = tensor.detach().set_requires_grad(input.requires_grad);
    again.push_back(std::move(tensor));
  }
  return again;
}

std::vector<Versioned> Segment::run_again() {
  const c10::InferenceMode no_inference(false);
  const at::AutoGradMode grad(true);
  const Tensors inputs = inputs_again();
  for (const auto& parameter : parameters_) unchanged(parameter, "a parameter of a recomputed segment");

  // A segment that is not finished differentiates within fn: what its first run did not reach must not run.
  Collector collector(finished_ ? 0 : saved_.size());
  Tensors outputs;
  {
    const RecomputingGuard recomputing;
    const AmbientStateGuard ambient_state(ambient_state_);
    const BufferSnapshot buffers(buffers_);
    const auto restore_buffers = c10::make_scope_exit([&] { buffers.restore(); });
    const SavedTensorSinkGuard to_collector(collector);
    const SegmentLog::Replay replay(log_);
    try {
      outputs = fn_(inputs);
    } catch (const Enough&) {
      outputs.clear();  // those of a segment that is not finished are not asked for
    }
  }
  Forms saved;
  for (const auto& [tensor, version] : collector.tensors) saved.emplace_back(tensor);
  if (finished_)
    check_same(outputs_, Forms(outputs.begin(), outputs.end()), "output");
  else if (saved.size() > saved_.size())
    saved.erase(saved.begin() + static_cast<std::ptrdiff_t>(saved_.size()), saved.end());
  check_same(saved_, saved, "saved tensor");
  return std::move(collector.tensors);
}

void Segment::check_same(const Forms& first, const Forms& second, const std::string& what) const {
  const std::string must = "fn must do the same when backward runs it again, ";
  if (first.size() != second.size()) {
    fail(
        fmt::format("{}but gave {} {}s first and {} now; what it reads must not change in between "
                    "(a module's train or eval mode, say)",
                    must, first.size(), what, second.size()));
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i] == second[i]) continue;
    fail(fmt::format("{}but {} {} was {} first and is {} now", must, what, i, first[i].text(),
                     second[i].text()));
  }
}

at::Tensor Segment::value(std::size_t index) {
  const std::lock_guard lock(mutex_);
  const int pass = torch::autograd::get_current_graph_task_id();
  auto run = runs_.find(pass);
  if (run == runs_.end() || !run->second[index].tensor.defined()) {
    auto saved = run_again();
    // A pass may not reach every operation; the tensors that it does not use must not outlive it.
    if (run == runs_.end() && pass >= 0) {
      // libtorch runs no callbacks of a pass that failed, but frees them. So it is the owner that forgets.
      auto owner = std::make_shared<Forgetter>(weak_from_this(), pass);
      Engine::get_default_engine().queue_callback([owner]() mutable { owner.reset(); });
    }
    run = runs_.insert_or_assign(pass, std::move(saved)).first;
  }
  const Versioned value = std::exchange(run->second[index], {});
  if (pass < 0) runs_.erase(run);  // called outside of backward: no callback would release the other tensors
  return unchanged(value, "a tensor saved for backward");
}

void Segment::forget(int pass) {
  const std::lock_guard lock(mutex_);
  runs_.erase(pass);
}

}  // namespace palimpsest::memory
