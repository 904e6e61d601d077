#include "palimpsest/nn/dense_strategy.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"

#include <utility>

namespace palimpsest::nn {
namespace {

constexpr std::pair<std::string_view, DenseStrategy> kDenseStrategies[] = {
    {"naive", DenseStrategy::kNaive},   {"shared_gradient", DenseStrategy::kSharedGradient},
    {"shared", DenseStrategy::kShared}, {"checkpoint", DenseStrategy::kCheckpoint},
    {"fused", DenseStrategy::kFused},
};

}  // namespace

DenseStrategy parse_dense_strategy(std::string_view wanted) {
  for (const auto& [name, strategy] : kDenseStrategies)
    if (name == wanted) return strategy;
  throw Error(ErrorKind::kUsage, unknown_name_message("dense strategy", wanted, dense_strategy_names()));
}

std::string to_string(DenseStrategy wanted) {
  for (const auto& [name, strategy] : kDenseStrategies)
    if (strategy == wanted) return std::string(name);
  throw Error(ErrorKind::kInternal,
              "dense strategy has no name: " + std::to_string(static_cast<int>(wanted)));
}

std::vector<std::string> dense_strategy_names() {
  std::vector<std::string> names;
  for (const auto& [name, strategy] : kDenseStrategies) names.emplace_back(name);
  return names;
}

}  // namespace palimpsest::nn
