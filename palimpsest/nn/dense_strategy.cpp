#include "palimpsest/nn/dense_strategy.h"

#include "palimpsest/base/named_enum.h"

namespace palimpsest::nn {
namespace {

constexpr NamedEnum kDenseStrategies{"dense strategy",
                                     {EnumName{DenseStrategy::kNaive, "naive"},
                                      {DenseStrategy::kSharedGradient, "shared_gradient"},
                                      {DenseStrategy::kShared, "shared"},
                                      {DenseStrategy::kCheckpoint, "checkpoint"},
                                      {DenseStrategy::kFused, "fused"}}};

}  // namespace

DenseStrategy parse_dense_strategy(std::string_view name) {
  return kDenseStrategies.parse(name);
}

std::string to_string(DenseStrategy strategy) {
  return std::string(kDenseStrategies.name(strategy));
}

std::vector<std::string> dense_strategy_names() {
  return kDenseStrategies.names();
}

}  // namespace palimpsest::nn
