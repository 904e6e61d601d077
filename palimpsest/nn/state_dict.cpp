#include "palimpsest/nn/state_dict.h"

namespace palimpsest::nn {
namespace {

void append(const torch::nn::Module& module, const std::string& prefix,
            std::vector<std::pair<std::string, at::Tensor>>& out) {
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    out.emplace_back(prefix + item.key(), item.value());
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    out.emplace_back(prefix + item.key(), item.value());
  for (const auto& child : module.named_children()) append(*child.value(), prefix + child.key() + ".", out);
}

}  // namespace

std::vector<std::pair<std::string, at::Tensor>> state_dict(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  append(module, "", tensors);
  return tensors;
}

}  // namespace palimpsest::nn
