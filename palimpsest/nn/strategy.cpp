#include "palimpsest/nn/strategy.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/named_enum.h"

namespace palimpsest::nn {
namespace {

constexpr NamedEnum kStrategies{"strategy",
                                {EnumName{Strategy::kStandard, "standard"},
                                 {Strategy::kCheckpoint, "checkpoint"},
                                 {Strategy::kCheckpointNormalized, "checkpoint_normalized"},
                                 {Strategy::kInplace1, "inplace_1"},
                                 {Strategy::kInplace2, "inplace_2"},
                                 {Strategy::kInplace2, "inplace"},
                                 {Strategy::kInplaceBit, "inplace_bit"},
                                 {Strategy::kInplaceBit, "inplace_1bit", false},
                                 {Strategy::kStoreY, "store_y"}}};

}  // namespace

Strategy parse_strategy(std::string_view name) {
  return kStrategies.parse(name);
}

std::string to_string(Strategy strategy) {
  return std::string(kStrategies.name(strategy));
}

std::vector<std::string> strategy_names() {
  return kStrategies.names();
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
    case Strategy::kInplaceBit:
      return kernels::has_branches(activation) ? ops::Saved::kOutputBit : ops::Saved::kOutput;
    case Strategy::kStoreY:
      return ops::Saved::kPreActivation;
    case Strategy::kStandard:
      break;
  }
  throw Error(ErrorKind::kInternal, "libtorch decides which tensors strategy 'standard' saves");
}

bool fits(Strategy strategy, Activation activation) {
  if (kernels::is_invertible(activation)) return true;
  if (strategy == Strategy::kInplaceBit) return kernels::has_branches(activation);
  return strategy != Strategy::kInplace1 && strategy != Strategy::kInplace2;
}

void check_pair(Strategy strategy, Activation activation) {
  if (fits(strategy, activation)) return;
  std::string others;
  for (const auto& [other, name, is_listed] : kStrategies)
    if (is_listed && fits(other, activation)) others += (others.empty() ? "" : ", ") + std::string(name);
  const std::string saved =
      strategy == Strategy::kInplaceBit ? "the output and one bit per element" : "only the output";
  throw Error(ErrorKind::kUsage, "strategy '" + to_string(strategy) + "' saves " + saved + ", from which '" +
                                     to_string(activation) +
                                     "' cannot be inverted; with it take one of: " + others);
}

}  // namespace palimpsest::nn
