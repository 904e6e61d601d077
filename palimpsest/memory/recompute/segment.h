#pragma once

#include "palimpsest/base/segment_log.h"
#include "palimpsest/memory/recompute.h"
#include "palimpsest/memory/recompute/ambient_state.h"
#include "palimpsest/memory/recompute/saved_tensor_hooks.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::memory {

/// A tensor and the version that its values must have. An in-place operation makes another version.
struct Versioned {
  at::Tensor tensor;
  int64_t version = 0;
};

/// One call of recompute(): the inputs of a second run, and the tensors that the second run saved. The
/// graph's nodes own the segment through the hooks that replace saved tensors; the last released node frees
/// it. It holds no node that leads back to itself, so there is no cycle.
class Segment final : public SavedTensorSink, public std::enable_shared_from_this<Segment> {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<Tensors(const Tensors&)>;

  Segment(Function fn, const Tensors& inputs, const RecomputeOptions& options);

  /// Runs fn on `inputs`, recording the graph without its tensors.
  Tensors first_run(const Tensors& inputs);

  /// Returns the `index`-th tensor that the first run would have saved, for the present backward pass. The
  /// first call of a pass runs fn again. Each value is handed out once: a second call for it runs fn once
  /// more.
  at::Tensor value(std::size_t index);

  /// Notes the form of a tensor that the first run would have saved, for comparison with the second run.
  /// Returns the tensor's index.
  std::size_t promise(const at::Tensor& tensor);
  std::unique_ptr<torch::autograd::SavedVariableHooks> next() override;

 private:
  class Forgetter;

  /// The shape, dtype and device of a tensor.
  struct Form {
    std::vector<int64_t> sizes;
    std::optional<at::ScalarType> dtype;  // none: an undefined tensor
    at::Device device = at::kCPU;

    explicit Form(const at::Tensor& tensor);
    std::string text() const;
    bool operator==(const Form&) const = default;
  };
  using Forms = std::vector<Form>;

  /// An input, held by reference; within another segment, held by the hooks of that segment.
  struct Input {
    std::unique_ptr<torch::autograd::SavedVariableHooks> hooks;
    Versioned value;  // if there are no hooks
    bool requires_grad = false;
  };

  void note_parameters(const Tensors& outputs, uint64_t first_node);
  Tensors inputs_again() const;
  std::vector<Versioned> run_again();
  void check_same(const Forms& first, const Forms& second, const std::string& what) const;
  void forget(int pass);

  const Function fn_;
  const Tensors buffers_;
  AmbientState ambient_state_;
  SegmentLog log_;  // what the first run computed with other processes
  std::vector<Input> inputs_;
  std::vector<Versioned> parameters_;
  Forms outputs_, saved_;
  bool finished_ = false;  // true after the first run
  // The backward threads of two devices may call value() at once; so may a second run that differentiates,
  // hence recursive.
  std::recursive_mutex mutex_;
  std::map<int, std::vector<Versioned>> runs_;  // per backward pass (libtorch's graph task)
};

}  // namespace palimpsest::memory
