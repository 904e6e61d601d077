#pragma once

#include "benchmarks/support.h"
#include "benchmarks/training.h"
#include "palimpsest/models/registry.h"

#include <torch/types.h>

#include <memory>
#include <string>

/// Networks and trainings for the benchmarks of densely connected networks.
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

/// A training of one form. All forms have the same numbers.
struct DenseTraining : Training {
  DenseTraining(const DenseInput& input, const DenseForm& form, bool channels_last)
      : Training(make_dense(input.model, form), {input.batch, input.side, /*classes=*/10}, channels_last) {}
};

}  // namespace palimpsest::benchmarks
