#include "palimpsest/nn/state_dict.h"

#include "palimpsest/base/error.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <unordered_map>

namespace palimpsest::nn {
namespace {

void append(const torch::nn::Module& module, const std::string& prefix, StateDict& out) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    out.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    out.emplace_back(prefix + item.key(), item.value());
  for (const auto& child : module.named_children()) append(*child.value(), prefix + child.key() + ".", out);
}

using TensorsByName = std::unordered_map<std::string_view, const at::Tensor*>;

TensorsByName by_name(const StateDict& dict) {
  TensorsByName tensors;
  for (const auto& [name, tensor] : dict) tensors.emplace(name, &tensor);
  return tensors;
}

bool holds_values(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_meta();
}

std::string name_of(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);  // "float32"
}

void check_names(const StateDict& dict, const LoadOptions& options) {
  std::set<std::string_view> names;
  for (const auto& [name, tensor] : dict)
    if (!names.insert(name).second)
      throw Error(
          ErrorKind::kCheckpoint,
          fmt::format("{} holds two tensors named {}; every name must be there once", options.source, name));
}

}  // namespace

StateDict state_dict(const torch::nn::Module& module) {
  StateDict tensors;
  append(module, "", tensors);
  return tensors;
}

bool StateDictDiff::matches(const std::string& name, const at::Tensor& got, const at::Tensor& wanted,
                            bool same_dtype) {
  if (!got.defined()) {
    mismatched.push_back(name + " is an undefined tensor");
  } else if (got.sizes() != wanted.sizes()) {
    mismatched.push_back(fmt::format("{} is ({}) instead of ({})", name, fmt::join(got.sizes(), ", "),
                                     fmt::join(wanted.sizes(), ", ")));
  } else if (same_dtype && got.scalar_type() != wanted.scalar_type()) {
    mismatched.push_back(fmt::format("{} is {} instead of {}", name, name_of(got.scalar_type()),
                                     name_of(wanted.scalar_type())));
  } else {
    return true;
  }
  return false;
}

std::string StateDictDiff::text() const {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> parts;
  const auto add = [&](const std::vector<std::string>& keys, const std::string& what) {
    if (keys.empty()) return;
    const std::vector<std::string> first(
        keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, keys.size())));
    parts.push_back(fmt::format("{} {} ({}{})", keys.size(), what, fmt::join(first, ", "),
                                keys.size() > kShown ? ", ..." : ""));
  };
  add(missing, missing.size() == 1 ? "missing key" : "missing keys");
  add(unexpected, unexpected.size() == 1 ? "unexpected key" : "unexpected keys");
  add(mismatched, "of another shape or type");
  return fmt::format("{}", fmt::join(parts, "; "));
}

bool is_batch_counter(std::string_view name) {
  return name.ends_with("num_batches_tracked");
}

StateDictDiff compare(const StateDict& dict, const StateDict& wanted, bool same_dtype) {
  const auto tensors = by_name(dict);
  StateDictDiff diff;
  std::set<std::string_view> known;
  for (const auto& [name, tensor] : wanted) {
    known.insert(name);
    const auto found = tensors.find(name);
    if (is_batch_counter(name) && (found == tensors.end() || !same_dtype)) continue;
    if (found == tensors.end()) {
      diff.missing.push_back(name);
    } else {
      const at::Tensor& got = *found->second;
      diff.matches(name, got, tensor, same_dtype || (got.defined() && !got.is_floating_point()));
    }
  }
  std::set<std::string_view> unexpected;
  for (const auto& [name, tensor] : dict)
    if (!known.contains(name) && !is_batch_counter(name)) unexpected.insert(name);
  diff.unexpected.assign(unexpected.begin(), unexpected.end());
  return diff;
}

StateDictDiff check_fit(const StateDict& dict, const StateDict& destination, const LoadOptions& options) {
  check_names(dict, options);
  StateDictDiff diff = compare(dict, destination, options.same_dtype);
  if (options.strict ? !diff.empty() : !diff.mismatched.empty())
    throw Error(ErrorKind::kCheckpoint, fmt::format("{} does not fit the model: {}; {}", options.source,
                                                    diff.text(), options.way_out));
  return diff;
}

StateDictDiff load_state_dict(const StateDict& destination, const StateDict& dict,
                              const LoadOptions& options) {
  StateDictDiff diff = check_fit(dict, destination, options);
  const auto tensors = by_name(dict);
  for (const auto& [name, tensor] : destination)
    if (const auto found = tensors.find(name);
        found != tensors.end() && !is_batch_counter(name) && found->second->is_meta())
      throw Error(ErrorKind::kCheckpoint,
                  fmt::format("{} cannot be loaded: {} has no values (device meta)", options.source, name));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : destination) {
    const auto found = tensors.find(name);
    // Counters were not compared: a file may hold one with shape (1).
    if (found == tensors.end() || !holds_values(*found->second) || found->second->numel() != tensor.numel())
      continue;
    at::Tensor(tensor).copy_(found->second->view_as(tensor));
  }
  return diff;
}

StateDictDiff load_state_dict(torch::nn::Module& module, const StateDict& dict, const LoadOptions& options) {
  return load_state_dict(state_dict(module), dict, options);
}

}  // namespace palimpsest::nn
