#include "palimpsest/amp/drop_weight_copies.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace palimpsest::amp {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
namespace nodes = torch::autograd::generated;

/// A leaf that reaches a node through casts, and possibly a transposition before or after a cast.
struct CastLeaf {
  at::Tensor leaf;
  bool transposed = false;
  int casts = 0;

  at::Tensor cast(at::ScalarType type) const {
    const at::Tensor copy = leaf.detach().to(type);
    return transposed ? copy.t() : copy;
  }

  /// Returns whether cast() makes `copy` again, bit-identically: ToCopyBackward0 also stands for a move to
  /// another device and for another memory order, and two casts round twice.
  bool makes(const at::Tensor& copy) const {
    const at::Tensor source = transposed && leaf.dim() == 2 ? leaf.detach().t() : leaf.detach();
    return casts == 1 && copy.device() == leaf.device() && leaf.is_non_overlapping_and_dense() &&
           copy.sizes() == source.sizes() && copy.strides() == source.strides();
  }
};

std::optional<CastLeaf> cast_leaf(const Edge& edge) {
  CastLeaf found;
  const Node* node = edge.function.get();
  while (node != nullptr) {
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      found.leaf = leaf->variable;
      return found.casts > 0 ? std::optional(found) : std::nullopt;
    }
    const std::string name = node->name();
    if (name == "ToCopyBackward0") {
      ++found.casts;
    } else if (name == "TBackward0") {
      found.transposed = !found.transposed;
    } else {
      return std::nullopt;
    }
    node = node->next_edge(0).function.get();
  }
  return std::nullopt;
}

/// Replaces the 16-bit copy that a node saved, and casts the leaf again in backward.
class Recast final : public torch::autograd::SavedVariableHooks {
 public:
  Recast(const CastLeaf& source, at::ScalarType type)
      : source_{source.leaf.detach(), source.transposed, source.casts},
        version_(source_.leaf._version()),
        type_(type) {}

  void call_pack_hook(const at::Tensor& /*copy*/) override {}
  at::Tensor call_unpack_hook() override {
    TORCH_CHECK(
        source_.leaf._version() == version_,
        "[drop_weight_copies] a weight must not change between forward and backward, but one of shape ",
        source_.leaf.sizes(), " was written over: step after backward");
    return source_.cast(type_);
  }

 private:
  CastLeaf source_;  // detached: it shares the version counter
  int64_t version_;
  at::ScalarType type_;
};

/// An operand that a node saves: the index of the node's input, and the place where the node saves it.
struct Operand {
  size_t input;
  SavedVariable* saved;
};

std::vector<Operand> saved_operands(Node& node) {
  if (auto* n = dynamic_cast<nodes::ConvolutionBackward0*>(&node)) return {{1, &n->weight_}};
  if (auto* n = dynamic_cast<nodes::AddmmBackward0*>(&node)) return {{1, &n->mat1_}, {2, &n->mat2_}};
  if (auto* n = dynamic_cast<nodes::MmBackward0*>(&node)) return {{0, &n->self_}, {1, &n->mat2_}};
  return {};
}

/// True for nodes that may read a cast of a leaf and save none of it: sums (biases) and views.
bool saves_no_operand(const std::string& name) {
  constexpr std::array<std::string_view, 7> kNames{
      "AddBackward0",  "ToCopyBackward0",    "TBackward0",        "ExpandBackward0",
      "ViewBackward0", "TransposeBackward0", "UnsqueezeBackward0"};
  return std::ranges::find(kNames, name) != kNames.end();
}

class Walk {
 public:
  void visit(Node* node) {
    if (node != nullptr && seen_.insert(node).second) todo_.push_back(node);
  }

  DroppedWeightCopies run() {
    while (!todo_.empty()) {
      Node* const node = todo_.back();
      todo_.pop_back();
      handle(*node);
      for (const Edge& edge : node->next_edges()) visit(edge.function.get());
    }
    result_.unknown.assign(unknown_.begin(), unknown_.end());
    return std::move(result_);
  }

 private:
  void handle(Node& node) {
    const auto operands = saved_operands(node);
    for (const auto& [input, saved] : operands) drop(node, node.next_edge(input), *saved);
    if (!operands.empty() || saves_no_operand(node.name())) return;
    for (const Edge& edge : node.next_edges())
      if (cast_leaf(edge)) unknown_.insert(node.name());
  }

  void drop(const Node& node, const Edge& edge, SavedVariable& saved) {
    if (saved.has_hooks()) return;  // dropped already, or in a recomputed segment
    const auto source = cast_leaf(edge);
    if (!source) return;
    const at::Tensor copy = saved.unpack();
    if (!copy.defined() || c10::elementSize(copy.scalar_type()) != 2) return;
    if (!source->makes(copy)) {
      unknown_.insert(node.name());
      return;
    }
    if (copies_.insert(copy.storage().unsafeGetStorageImpl()).second)
      result_.bytes += static_cast<int64_t>(copy.storage().nbytes());
    saved.register_hooks(std::make_unique<Recast>(*source, copy.scalar_type()));
    ++result_.nodes;
  }

  DroppedWeightCopies result_;
  std::set<std::string> unknown_;
  std::vector<Node*> todo_;
  std::unordered_set<const Node*> seen_;
  std::unordered_set<const c10::StorageImpl*> copies_;
};

/// Warns of each kind of node once per program.
void warn_of(const std::vector<std::string>& unknown) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  const std::lock_guard lock(mutex);
  for (const auto& name : unknown)
    if (warned.insert(name).second) {
      TORCH_WARN(
          "[drop_weight_copies] ", name,
          " reads a 16-bit copy of a weight and may keep it until backward: the node is not known, or more "
          "than one plain cast made the copy");
    }
}

}  // namespace

DroppedWeightCopies drop_weight_copies(const std::vector<at::Tensor>& roots) {
  Walk walk;
  for (const auto& root : roots)
    if (root.defined()) walk.visit(root.grad_fn().get());
  DroppedWeightCopies result = walk.run();
  warn_of(result.unknown);
  return result;
}

DroppedWeightCopies drop_weight_copies(const at::Tensor& root) {
  return drop_weight_copies(std::vector<at::Tensor>{root});
}

}  // namespace palimpsest::amp
