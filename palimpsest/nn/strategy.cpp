#include "palimpsest/nn/strategy.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"

namespace palimpsest::nn {

Strategy parse_strategy(std::string_view name) {
  if (name == "standard") return Strategy::kStandard;
  if (name == "inplace_2" || name == "inplace") return Strategy::kInplace2;
  throw Error(ErrorKind::kUsage, unknown_name_message("strategy", name, strategy_names()));
}

std::string to_string(Strategy strategy) {
  return strategy == Strategy::kStandard ? "standard" : "inplace_2";
}

std::vector<std::string> strategy_names() {
  return {"standard", "inplace_2", "inplace"};
}

}  // namespace palimpsest::nn
