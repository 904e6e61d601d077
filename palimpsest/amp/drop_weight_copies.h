#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

/// Under autocast, libtorch's own layers save the 16-bit copy of each f32 weight for backward, which takes
/// half as much memory again as the weights (Micikevicius et al., "Mixed Precision Training", ICLR 2018,
/// section 4.3 reports the same). Our layers save the f32 weight and cast it again. libtorch's layers do the
/// same after this call:
///
///   {
///     const amp::AutocastGuard guard(at::kCPU, at::kBFloat16, {.cache = false});
///     loss = torch::cross_entropy_loss(net->forward(images).to(at::kFloat), labels);
///   }
///   amp::drop_weight_copies(loss);
///   loss.backward();   // each node casts its weight again and frees the copy
namespace palimpsest::amp {

struct DroppedWeightCopies {
  int64_t nodes = 0;  ///< nodes whose copy of a weight was dropped
  int64_t bytes = 0;  ///< bytes of the copies; a copy that several nodes share counts once
  /// Names of nodes that read a copy of a weight and may save it, each name once.
  std::vector<std::string> unknown;
};

/// Walks the graph from `roots`. Every convolution and matrix product that saved a 16-bit cast of a leaf (or
/// of the leaf's transpose) saves the leaf instead. Gradients stay the same to the last bit. A layer that the
/// walk does not know (a recurrent one, for example) keeps its copy; a warning names each kind once per
/// program.
///
/// Call it right after the forward pass, while the leaves have the values that were cast; as usual, backward
/// raises an error if a leaf changes later. All copies are in memory until the call: for many layers, also
/// call it with an intermediate result. Nodes of recomputed segments save nothing and stay as they are.
DroppedWeightCopies drop_weight_copies(const std::vector<at::Tensor>& roots);
DroppedWeightCopies drop_weight_copies(const at::Tensor& root);

}  // namespace palimpsest::amp
