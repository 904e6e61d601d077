#pragma once

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

// The optimizers of train::make_optimizer. libtorch's own launch three to nine kernels per parameter, which
// takes a GPU longer to start than to run: 160 parameters of ResNet-50 are 640 launches per step. These
// launch kernels for lists of parameters. State, options and checkpoints are those of libtorch's.
namespace palimpsest::train {

/// The update of torch::optim::SGD for lists of parameters. On a device whose list operators are loops over
/// libtorch's operators, as the CPU's are, the results are the same bits. Memory: a copy of at most
/// kListValues values, or of the largest parameter. Sparse gradients need torch::optim::SGD.
void foreach_step(torch::optim::SGD& optimizer);
/// Does the same with torch::optim::AdamW, which must not have amsgrad.
void foreach_step(torch::optim::AdamW& optimizer);

/// The values that one list of parameters has at most, unless it is one parameter: 32 MiB in f32.
inline constexpr int64_t kListValues = int64_t{1} << 23;

/// Calls foreach_step where no parameter is on the CPU. On the CPU a list takes the same time and more
/// memory.
template <class Optimizer>
class ForeachOptimizer : public Optimizer {
 public:
  using Optimizer::Optimizer;
  using typename Optimizer::LossClosure;
  at::Tensor step(LossClosure closure = nullptr) override;
};

extern template class ForeachOptimizer<torch::optim::SGD>;
extern template class ForeachOptimizer<torch::optim::AdamW>;

}  // namespace palimpsest::train
