#include "palimpsest/train/best.h"

#include "palimpsest/base/nearest_name.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/train/common/require.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace palimpsest::train {

std::vector<std::string> best_names() {
  return {"none", "metric", "loss"};
}

void check_best(const std::string& criterion, int64_t patience) {
  const auto names = best_names();
  require(std::find(names.begin(), names.end(), criterion) != names.end(),
          unknown_name_message("keep_best", criterion, names));
  require(patience >= 0, fmt::format("patience must be at least 0, got {}", patience));
  require(patience == 0 || criterion != "none",
          fmt::format("patience needs keep_best = metric or loss, which is none; got patience {}", patience));
}

Best::Best(const std::string& criterion, int64_t patience) : criterion_(criterion), patience_(patience) {
  check_best(criterion, patience);
}

bool Best::add(const EvaluationRecord& record) {
  const bool by_loss = criterion_ == "loss";
  const double value = by_loss               ? record.loss
                       : record.segmentation ? record.metrics.mean_iou
                                             : record.metrics.top1;
  const bool better =
      std::isfinite(value) && (!state_.value || (by_loss ? value < *state_.value : value > *state_.value));
  if (better) {
    state_ = {value, record.step, 0};
  } else {
    ++state_.evaluations_since;
  }
  return better;
}

std::string Best::text() const {
  if (!state_.value) return fmt::format("no evaluation of {} has a value", state_.evaluations_since);
  return fmt::format("no better {} than {:.4f} of step {} in {}", criterion_ == "loss" ? "loss" : "metric",
                     *state_.value, state_.step, counted(state_.evaluations_since, "evaluation"));
}

}  // namespace palimpsest::train
