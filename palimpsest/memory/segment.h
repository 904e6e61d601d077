#pragma once

#include "palimpsest/memory/recompute.h"
#include "palimpsest/memory/saved_tensor_hooks.h"
#include "palimpsest/memory/surroundings.h"

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

/// A tensor, and the version of its values that is meant: an in-place operation makes another version.
struct Versioned {
  at::Tensor tensor;
  int64_t version = 0;
};

/// One call of recompute(): what a second run needs, and what it brought back. The graph's nodes own it,
/// through the hooks that stand where saved tensors would; it goes when the last of them is released. It
/// holds no node that leads to itself, so there is no cycle.
class Segment final : public SavedTensorSink, public std::enable_shared_from_this<Segment> {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<Tensors(const Tensors&)>;

  Segment(Function fn, const Tensors& inputs, const RecomputeOptions& options);

  /// Runs fn on `inputs`, recording the graph without its tensors.
  Tensors first_run(const Tensors& inputs);

  /// The `index`-th tensor that the first run would have saved, for the present backward pass, whose first
  /// question runs fn again. It is handed out once: asked anew, fn is run anew.
  at::Tensor value(std::size_t index);

  /// Notes the form of a tensor that the first run would have saved, to compare the second run with; its
  /// index.
  std::size_t promise(const at::Tensor& tensor);
  std::unique_ptr<torch::autograd::SavedVariableHooks> next() override;

 private:
  /// How a tensor looks from outside.
  struct Form {
    std::vector<int64_t> sizes;
    std::optional<at::ScalarType> dtype;  // none: an undefined tensor
    at::Device device = at::kCPU;

    explicit Form(const at::Tensor& tensor);
    std::string text() const;
    bool operator==(const Form&) const = default;
  };
  using Forms = std::vector<Form>;

  /// An input, by reference; within another segment by the hooks of that one.
  struct Input {
    std::unique_ptr<torch::autograd::SavedVariableHooks> hooks;
    Versioned value;  // where there are no hooks
    bool requires_grad = false;
  };

  void note_parameters(const Tensors& outputs, uint64_t first_node);
  Tensors inputs_again() const;
  std::vector<Versioned> run_again();
  void check_same(const Forms& first, const Forms& second, const std::string& what) const;
  void forget(int pass);

  const Function fn_;
  const Tensors buffers_;
  Surroundings surroundings_;
  std::vector<Input> inputs_;
  std::vector<Versioned> parameters_;
  Forms outputs_, saved_;
  bool finished_ = false;  // the first run
  // Backward threads of two devices may ask at once. Recursive, as a second run that differentiates may ask
  // too.
  std::recursive_mutex mutex_;
  std::map<int, std::vector<Versioned>> runs_;  // by backward pass (libtorch's graph task)
};

}  // namespace palimpsest::memory
