#pragma once

#include "benchmarks/support.h"
#include "palimpsest/models/registry.h"

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <string>

/// The parts that the benchmarks of densely connected networks share.
namespace palimpsest::benchmarks {

struct DenseForm {
  nn::DenseStrategy dense_strategy;
  nn::Strategy strategy;
};
/// libtorch's own layers, with ReLU in place.
inline constexpr DenseForm kLibtorchLayers{nn::DenseStrategy::kSharedGradient, nn::Strategy::kStandard};

struct DenseInput {
  std::string model;
  int64_t batch, side;
};

inline std::shared_ptr<nn::Model> make_dense(const std::string& name, const DenseForm& form) {
  torch::manual_seed(0);
  models::ModelOptions options;
  options.activation = nn::Activation::kReLU;
  options.strategy = form.strategy;
  options.dense_strategy = form.dense_strategy;
  options.classes = name.starts_with("densenet_bc") ? 10 : 1000;
  return models::make(name, options);
}

/// A model of one form, its optimizer and its batch; the same numbers whatever the form.
struct DenseTraining {
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<torch::optim::SGD> optimizer;
  at::Tensor images, targets;

  DenseTraining(const DenseInput& input, const DenseForm& form, bool channels_last)
      : model(make_dense(input.model, form)) {
    const auto format = channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
    for (auto& p : model->parameters())
      if (p.dim() == 4) p.set_data(p.contiguous(format));
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(),
                                                    torch::optim::SGDOptions(1e-3).momentum(0.9));
    images = torch::randn({input.batch, 3, input.side, input.side}).contiguous(format);
    targets = torch::randint(10, {input.batch});
  }

  at::Tensor loss() { return torch::nn::functional::cross_entropy(model->forward(images), targets); }

  double step() {
    optimizer->zero_grad();
    const at::Tensor l = loss();
    l.backward();
    optimizer->step();
    return l.item<double>();
  }
};

}  // namespace palimpsest::benchmarks
