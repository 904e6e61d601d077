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

/// Every parameter and buffer with its dotted name, in the order of Python's Module.state_dict(): each
/// module's parameters, then its buffers, then its children. The tensors are the module's own, not copies.
StateDict state_dict(const torch::nn::Module& module);

/// How a state dict differs from the one that a module (or an optimizer) has. The words are torch's.
struct StateDictDiff {
  std::vector<std::string> missing;     ///< keys that only the module has
  std::vector<std::string> unexpected;  ///< keys that only the state dict has
  std::vector<std::string> mismatched;  ///< "fc.weight is (10, 512) in the file, (1000, 512) in the model"

  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  /// Returns whether `got` has the shape of `wanted`, and its dtype if `same_dtype`. Notes a difference in
  /// `mismatched`.
  bool matches(const std::string& name, const at::Tensor& got, const at::Tensor& wanted, bool same_dtype);
  /// "2 missing keys (a, b); 5 unexpected keys (c, d, e, ...); 1 of another shape or type (...)": the first
  /// three of each.
  std::string text() const;
};

struct LoadOptions {
  /// true: any difference is an error. false: keys that only one side has are left alone and returned; a
  /// tensor of another shape remains an error.
  bool strict = true;
  /// true: a tensor of another dtype is a difference. false: any floating dtype converts to any other.
  bool same_dtype = false;
  /// Begins the error message: "'resnet50.safetensors'".
  std::string source = "the state dict";
  /// Ends the error message: what the user can do.
  std::string way_out = "use the model that it was made with";
};

/// Compares `dict` with the tensors `wanted`. `missing` and `mismatched` have the order of `wanted`,
/// `unexpected` is sorted by name. A num_batches_tracked may be missing or left over: it counts batches and
/// does not change the function of a trained network. With same_dtype one that is there must match.
StateDictDiff compare(const StateDict& dict, const StateDict& wanted, bool same_dtype = false);

/// Copies the tensors of `dict` into the parameters and buffers of `module`, by name; dtypes convert.
/// Strides, addresses and requires_grad of the module's tensors stay. Throws Error(kCheckpoint) that counts
/// and names the keys if they differ (see LoadOptions); then the module is unchanged. Returns the difference,
/// which is empty if strict.
StateDictDiff load_state_dict(torch::nn::Module& module, const StateDict& dict,
                              const LoadOptions& options = {});
/// The same for tensors that state_dict() returned, or for a part of them.
StateDictDiff load_state_dict(const StateDict& destination, const StateDict& dict,
                              const LoadOptions& options = {});

/// Whether `name` ends with "num_batches_tracked".
bool is_batch_counter(std::string_view name);

}  // namespace palimpsest::nn
