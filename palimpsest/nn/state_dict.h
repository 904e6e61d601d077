#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest::nn {

/// Tensors by dotted name, in any order: the state dict of a module, or the contents of a file of weights.
using StateDict = std::vector<std::pair<std::string, at::Tensor>>;

/// Returns every parameter and buffer with its dotted name, in the order of Python's Module.state_dict():
/// each module's parameters, then its buffers, then its children. The tensors are the module's own, not
/// copies.
StateDict state_dict(const torch::nn::Module& module);

/// The differences between a state dict and the one that a module (or an optimizer) has, in torch's words.
struct StateDictDiff {
  std::vector<std::string> missing;     ///< keys that only the module has
  std::vector<std::string> unexpected;  ///< keys that only the state dict has
  std::vector<std::string> mismatched;  ///< "fc.weight is (10, 512) instead of (1000, 512)"

  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  /// Returns whether `got` is defined and has the shape of `wanted`, and its dtype if `same_dtype`. Notes a
  /// difference in `mismatched`.
  bool matches(const std::string& name, const at::Tensor& got, const at::Tensor& wanted, bool same_dtype);
  /// "2 missing keys (a, b); 5 unexpected keys (c, d, e, ...); 1 of another shape or type (...)": the first
  /// three of each.
  std::string text() const;
};

struct LoadOptions {
  /// true: any difference is an error. false: keys that only one side has are ignored and returned; a tensor
  /// of another shape is an error all the same.
  bool strict = true;
  /// true: a tensor of another dtype is a difference. false: floating-point dtypes convert to one another.
  bool same_dtype = false;
  /// The beginning of the error message: "'resnet50.safetensors'".
  std::string source = "the state dict";
  /// The end of the error message: the way out.
  std::string way_out = "use the model that it was made with";
};

/// Compares `dict` with the tensors `wanted`. `missing` and `mismatched` have the order of `wanted`,
/// `unexpected` is sorted by name. A num_batches_tracked may be missing or left over: it counts batches and
/// does not change the function of a trained network. With `same_dtype`, a num_batches_tracked of both sides
/// must match.
StateDictDiff compare(const StateDict& dict, const StateDict& wanted, bool same_dtype = false);

/// Throws as load_state_dict does if the names or shapes differ, and returns the difference. Reads no values:
/// `dict` may be the header of a file.
StateDictDiff check_fit(const StateDict& dict, const StateDict& destination, const LoadOptions& options = {});

/// Copies the tensors of `dict` into the parameters and buffers of `module`, by name; dtypes convert.
/// Strides, addresses and requires_grad of the module's tensors stay. Returns the difference, which is empty
/// if `options.strict`. If the keys differ (see LoadOptions), throws Error(kCheckpoint) that counts and names
/// them; so does a name that `dict` holds twice. An error leaves the module unchanged.
StateDictDiff load_state_dict(torch::nn::Module& module, const StateDict& dict,
                              const LoadOptions& options = {});
/// Does the same with tensors that state_dict() returned, or with a part of them, as the destination.
StateDictDiff load_state_dict(const StateDict& destination, const StateDict& dict,
                              const LoadOptions& options = {});

/// Returns whether `name` ends with "num_batches_tracked".
bool is_batch_counter(std::string_view name);

}  // namespace palimpsest::nn
