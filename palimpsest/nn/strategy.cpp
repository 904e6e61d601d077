#include "palimpsest/nn/strategy.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"

#include <utility>

namespace palimpsest::nn {
namespace {

constexpr std::pair<std::string_view, Strategy> kStrategies[] = {
    {"standard", Strategy::kStandard},
    {"checkpoint", Strategy::kCheckpoint},
    {"checkpoint_normalized", Strategy::kCheckpointNormalized},
    {"inplace_1", Strategy::kInplace1},
    {"inplace_2", Strategy::kInplace2},
    {"inplace", Strategy::kInplace2},
    {"inplace_1bit", Strategy::kInplace1Bit},
    {"store_y", Strategy::kStoreY},
};

}  // namespace

Strategy parse_strategy(std::string_view wanted) {
  for (const auto& [name, strategy] : kStrategies)
    if (name == wanted) return strategy;
  throw Error(ErrorKind::kUsage, unknown_name_message("strategy", wanted, strategy_names()));
}

std::string to_string(Strategy wanted) {
  for (const auto& [name, strategy] : kStrategies)
    if (strategy == wanted) return std::string(name);
  throw Error(ErrorKind::kInternal, "strategy has no name: " + std::to_string(static_cast<int>(wanted)));
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& [name, strategy] : kStrategies) names.emplace_back(name);
  return names;
}

ops::Saved saved_by_strategy(Strategy strategy, Activation activation) {
  switch (strategy) {
    case Strategy::kCheckpoint:
      return ops::Saved::kInput;
    case Strategy::kCheckpointNormalized:
      return ops::Saved::kNormalized;
    case Strategy::kInplace1:
      return ops::Saved::kOutputForm1;
    case Strategy::kInplace2:
      return ops::Saved::kOutput;
    case Strategy::kInplace1Bit:
      return kernels::has_branches(activation) ? ops::Saved::kOutputBit : ops::Saved::kOutput;
    case Strategy::kStoreY:
      return ops::Saved::kPreActivation;
    case Strategy::kStandard:
      break;
  }
  throw Error(ErrorKind::kInternal, "libtorch decides what strategy 'standard' keeps");
}

bool fits(Strategy strategy, Activation activation) {
  if (kernels::is_invertible(activation)) return true;
  if (strategy == Strategy::kInplace1Bit) return kernels::has_branches(activation);
  return strategy != Strategy::kInplace1 && strategy != Strategy::kInplace2;
}

void check_pair(Strategy strategy, Activation activation) {
  if (fits(strategy, activation)) return;
  std::string others;
  for (const auto& [name, other] : kStrategies)
    if (fits(other, activation)) others += (others.empty() ? "" : ", ") + std::string(name);
  const std::string kept =
      strategy == Strategy::kInplace1Bit ? "the output and one bit an element" : "the output only";
  throw Error(ErrorKind::kUsage, "strategy '" + to_string(strategy) + "' keeps " + kept + ", from which '" +
                                     to_string(activation) +
                                     "' cannot be inverted; with it take one of: " + others);
}

}  // namespace palimpsest::nn
