#pragma once

#include "palimpsest/distributed/process_group.h"
#include "palimpsest/train/checkpoint.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>

// What the ranks of a training tell each other before its first step. All functions but the first are
// collective.
namespace palimpsest::train {

/// Returns the seed of libtorch's generator on a rank from `step` on: that of the run on rank 0, an
/// independent one on any other rank.
uint64_t rank_seed(uint64_t seed, int64_t step, int rank);

/// Overwrites step, scaling and other_ranks of `state` with those of rank 0.
void share_state(distributed::Group& group, RunState& state);

/// Overwrites the state of the optimizer (train/optimizer_state.h) with that of rank 0.
void share_optimizer_state(distributed::Group& group, torch::optim::Optimizer& optimizer,
                           const torch::nn::Module& module);

/// Overwrites `state` with that of rank 0.
void share_best(distributed::Group& group, BestState& state);

/// Returns the states of the generators of ranks 1, 2, ...
std::vector<GeneratorStates> gather_generator_states(distributed::Group& group,
                                                     const torch::nn::Module& module);

}  // namespace palimpsest::train
