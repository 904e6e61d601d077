#pragma once

#include "palimpsest/nn/model.h"
#include "palimpsest/train/network.h"
#include "palimpsest/train/step.h"

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <utility>

/// The training step that benchmarks measure.
namespace palimpsest::benchmarks {

struct BatchShape {
  int64_t size, side, classes;  ///< images (size, 3, side, side), labels below `classes`
};

/// A classification network, SGD with momentum and one random batch. Seed libtorch's generator before you
/// make the network and this object: two trainings then have the same numbers.
struct Training {
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<torch::optim::SGD> optimizer;
  at::Tensor images, targets;
  train::StepOptions options;
  train::Step train_step;

  Training(std::shared_ptr<nn::Model> network, const BatchShape& batch, bool channels_last,
           const train::StepOptions& step_options = {})
      : model(std::move(network)), options(step_options), train_step(*model, step_options) {
    const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    for (auto& p : model->parameters())
      if (p.dim() == 4) p.set_data(p.contiguous(format));
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(1e-3).momentum(0.9));
    images = torch::randn({batch.size, 3, batch.side, batch.side}).contiguous(format);
    targets = torch::randint(batch.classes, {batch.size});
  }

  at::Tensor loss() const {
    return torch::nn::functional::cross_entropy(train::forward(*model, images, options.precision), targets);
  }

  /// Takes one step and returns the loss before it.
  double step() {
    double value = 0;
    train_step.run(*optimizer, [&] {
      at::Tensor result = loss();
      value = result.item<double>();
      return result;
    });
    return value;
  }
};

}  // namespace palimpsest::benchmarks
