#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

/// libtorch's own layers under autocast: their nodes keep the 16-bit copy of each f32 weight until backward,
/// half as much again as the weights (Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 4.3
/// has as much). Ours keep the f32 weight and cast again (ops/common/autocast.h). For others:
///
///   {
///     const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, {.cache = false});
///     loss = torch::cross_entropy_loss(net->forward(images).to(at::kFloat), labels);
///   }
///   amp::drop_weight_copies(loss);
///   loss.backward();                       // each node casts its weight again and drops the copy
namespace palimpsest::amp {

struct WeightCopies {
  int64_t nodes = 0;                 ///< whose copy of a weight was dropped
  int64_t bytes = 0;                 ///< of the copies, each counted once
  std::vector<std::string> unknown;  ///< names of nodes that read a copy and may keep it, each once
};

/// Walks the graph from `roots` and has every convolution and matrix product that saved a 16-bit cast of a
/// leaf (or of its transpose) keep the leaf instead: gradients stay the same to the last bit. A layer that
/// the walk does not know (a recurrent one, say) keeps its copy; a warning names each kind once in a program.
/// Call it right after the forward pass: what was cast must still be the leaf's value. A leaf that is changed
/// afterwards is an error in backward, as ever. Between two calls the copies add up: with many layers, call
/// it with an intermediate result, too. Nodes of recomputed segments keep nothing and are left alone.
WeightCopies drop_weight_copies(const std::vector<at::Tensor>& roots);
WeightCopies drop_weight_copies(const at::Tensor& root);

}  // namespace palimpsest::amp
